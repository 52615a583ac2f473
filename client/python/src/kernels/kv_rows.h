// K or V of some tokens as Python has them, [heads][tokens][head_dim] of float32, bfloat16 or
// float16 (uint16 and int16: the bits of bfloat16) with any strides; and copying them into rows of
// bf16, rounded to nearest, ties to even.
//
// Threads  made with the GIL; CopyTo() from any thread
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "absl/strings/string_view.h"

namespace pagoda::python {

class KvRows {
 public:
  // Raises INVALID_ARGUMENT: not on the CPU, not three axes, not of this many heads and channels,
  // or another type. `name` is what the caller calls it.
  KvRows(nanobind::handle object, absl::string_view name, int32_t head_count, int32_t head_dim);

  int64_t token_count() const { return static_cast<int64_t>(array_.shape(1)); }
  // Tokens [begin, begin + count) of `head` to rows of head_dim words.
  void CopyTo(uint16_t* rows, int32_t head, int64_t begin, int64_t count) const;

 private:
  enum class Element { kBf16, kFloat, kFp16 };
  template <Element element>
  void CopyRows(uint16_t* rows, int32_t head, int64_t begin, int64_t count) const;

  nanobind::ndarray<nanobind::ro> array_;
  Element element_ = Element::kBf16;
};

}  // namespace pagoda::python
