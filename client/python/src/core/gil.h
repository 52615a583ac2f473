// Without the GIL, what may wait.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace pagoda::python {

// Waits for the GIL. Where Python has ended meanwhile it does not return: Python would end the
// thread by unwinding its stack, which C++ takes for a fault of ours and aborts.
void TakeGil(PyThreadState* state);

// REQUIRES: the caller holds the GIL, and no lock that somebody with the GIL waits for.
template <typename F>
auto WithoutGil(F&& function) {
  struct Released {
    PyThreadState* const state = PyEval_SaveThread();
    ~Released() { TakeGil(state); }
  };
  const Released released;
  return std::forward<F>(function)();
}

}  // namespace pagoda::python
