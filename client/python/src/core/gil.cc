#include "gil.h"

#include <unistd.h>

namespace pagoda::python {

void TakeGil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {  // pthread_exit() of a Python that has ended
    while (true) pause();
  }
}

}  // namespace pagoda::python
