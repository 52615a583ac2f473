// The module pagoda_kv._core: client/client.h for Python. Its types are in src/pagoda_kv/_core.pyi.
#include <nanobind/nanobind.h>

#include "client_module.h"
#include "errors.h"
#include "functions.h"
#include "gil.h"
#include "model.h"
#include "page_fetch.h"
#include "pages.h"
#include "pusher.h"
#include "python_thread.h"
#include "shared_client.h"

namespace {

// While Python can still run callbacks and take its objects back.
void EndBeforePython() {
  pagoda::python::WithoutGil([] {
    pagoda::python::CloseAllClients();
    pagoda::python::StopPythonThread();
  });
}

}  // namespace

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(false);  // what is alive at the end was closed by EndBeforePython()
  pagoda::python::RegisterErrors(module);
  pagoda::python::RegisterModel(module);
  pagoda::python::RegisterPages(module);
  pagoda::python::RegisterPageFetch(module);
  pagoda::python::RegisterPusher(module);
  pagoda::python::RegisterClient(module);
  pagoda::python::RegisterFunctions(module);
  nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function(&EndBeforePython));
}
