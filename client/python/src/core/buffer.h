// The bytes of a Python object, held: what has the buffer protocol (bytes, bytearray, numpy), or
// DLPack on the CPU (tensors). Contiguous ones alone; nothing is copied.
//
// Threads    made and destroyed with the GIL; bytes() from any thread
// Errors     INVALID_ARGUMENT  names what is wrong with it, and what helps
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "absl/strings/string_view.h"
#include "storage/base/bytes.h"

namespace pagoda::python {

class Buffer {
 public:
  // Raises. `name` is what the caller calls it.
  Buffer(nanobind::handle object, absl::string_view name);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;

  ByteSpan bytes() const { return bytes_; }

 private:
  bool TakeView(nanobind::handle object, absl::string_view name);

  Py_buffer view_{};  // its obj is null: the array holds the bytes
  nanobind::ndarray<nanobind::ro> array_;
  ByteSpan bytes_;
};

}  // namespace pagoda::python
