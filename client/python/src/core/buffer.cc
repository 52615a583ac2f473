#include "buffer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "errors.h"

namespace pagoda::python {
namespace nb = nanobind;
namespace {

[[noreturn]] void RaiseNotContiguous(absl::string_view name) {
  Raise(absl::InvalidArgumentError(
      absl::StrCat(name,
                   ": not contiguous; numpy.ascontiguousarray() or tensor.contiguous() "
                   "copies it together")));
}

bool IsContiguous(const nb::ndarray<nb::ro>& array) {
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) return array.size() == 0;
    expected *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

}  // namespace

bool Buffer::TakeView(nb::handle object, absl::string_view name) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) == 0) {
    bytes_ = ByteSpan(static_cast<const std::byte*>(view_.buf), static_cast<size_t>(view_.len));
    return true;
  }
  PyErr_Clear();
  Py_buffer strided;
  if (PyObject_GetBuffer(object.ptr(), &strided, PyBUF_FULL_RO) == 0) {
    PyBuffer_Release(&strided);
    RaiseNotContiguous(name);
  }
  PyErr_Clear();  // an element type that the protocol has no name for: DLPack may have one
  return false;
}

Buffer::Buffer(nb::handle object, absl::string_view name) {
  if (TakeView(object, name)) return;
  if (!nb::try_cast(object, array_, /*convert=*/false)) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat(name, " is a ", Py_TYPE(object.ptr())->tp_name,
                     "; accepted: the buffer protocol (bytes, numpy), or DLPack on the CPU (a "
                     "tensor without grad)")));
  }
  if (array_.device_type() != nb::device::cpu::value) {
    Raise(absl::InvalidArgumentError(absl::StrCat(
        name, " is on a device of type ", array_.device_type(), "; copy it to the CPU first")));
  }
  if (!IsContiguous(array_)) RaiseNotContiguous(name);
  bytes_ = ByteSpan(static_cast<const std::byte*>(array_.data()), array_.nbytes());
}

Buffer::Buffer(Buffer&& other) noexcept
    : view_(std::exchange(other.view_, Py_buffer{})),
      array_(std::move(other.array_)),
      bytes_(other.bytes_) {}

Buffer::~Buffer() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

}  // namespace pagoda::python
