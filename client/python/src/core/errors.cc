#include "errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace pagoda::python {
namespace nb = nanobind;
namespace {

constexpr char kDoc[] =
    "What went wrong, and in `code` the name of the status: \"UNAVAILABLE\", "
    "\"DEADLINE_EXCEEDED\", "
    "\"INVALID_ARGUMENT\", ...";

PyObject* error_type = nullptr;  // set once, while the module is imported

}  // namespace

void RegisterErrors(nb::module_& module) {
  nb::dict fields;
  fields["code"] = "UNKNOWN";  // of instances that Python code makes itself
  error_type =
      PyErr_NewExceptionWithDoc("pagoda_kv.PagodaError", kDoc, PyExc_Exception, fields.ptr());
  if (error_type == nullptr) throw nb::python_error();
  module.attr("PagodaError") = nb::borrow(error_type);
}

nb::object ErrorOf(const absl::Status& status) {
  if (status.ok()) return nb::none();
  const std::string code = absl::StatusCodeToString(status.code());
  // A message may hold bytes from elsewhere.
  const std::string text = absl::StrCat(code, ": ", status.message());
  nb::object message = nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (!message.is_valid()) throw nb::python_error();
  nb::object error = nb::borrow(error_type)(message);
  error.attr("code") = nb::str(code.c_str());
  return error;
}

void Raise(const absl::Status& status) {
  PAGODA_CHECK(!status.ok());
  PyErr_SetObject(error_type, ErrorOf(status).ptr());
  throw nb::python_error();
}

}  // namespace pagoda::python
