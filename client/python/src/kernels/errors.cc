// The errors of ../core/errors.h, of the type that _core made: callers catch one PagodaError.
#include "errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace pagoda::python {
namespace nb = nanobind;
namespace {

PyObject* error_type = nullptr;  // set once, while the module is imported; never freed

}  // namespace

void RegisterErrors(nb::module_& module) {
  nb::object type = nb::module_::import_("pagoda_kv._core").attr("PagodaError");
  module.attr("PagodaError") = type;
  error_type = type.release().ptr();
}

nb::object ErrorOf(const absl::Status& status) {
  if (status.ok()) return nb::none();
  const std::string code = absl::StatusCodeToString(status.code());
  nb::object error = nb::borrow(error_type)(absl::StrCat(code, ": ", status.message()).c_str());
  error.attr("code") = nb::str(code.c_str());
  return error;
}

void Raise(const absl::Status& status) {
  PAGODA_CHECK(!status.ok());
  PyErr_SetObject(error_type, ErrorOf(status).ptr());
  throw nb::python_error();
}

}  // namespace pagoda::python
