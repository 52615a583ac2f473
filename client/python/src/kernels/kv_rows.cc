#include "kv_rows.h"

#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "errors.h"
#include "kernels/float16.h"

namespace pagoda::python {
namespace nb = nanobind;
namespace {

[[noreturn]] void RaiseInvalid(const std::string& text) { Raise(absl::InvalidArgumentError(text)); }

}  // namespace

KvRows::KvRows(nb::handle object, absl::string_view name, int32_t head_count, int32_t head_dim) {
  if (!nb::try_cast(object, array_, /*convert=*/false)) {
    RaiseInvalid(
        absl::StrFormat("%s is a %s; accepted: a numpy array, or a tensor on the CPU without grad",
                        name, nb::cast<std::string>(nb::inst_name(object))));
  }
  if (array_.device_type() != nb::device::cpu::value) {
    RaiseInvalid(absl::StrFormat("%s is on a device of type %d; copy it to the CPU first", name,
                                 array_.device_type()));
  }
  if (array_.ndim() != 3 || static_cast<int64_t>(array_.shape(0)) != head_count ||
      static_cast<int64_t>(array_.shape(2)) != head_dim) {
    std::string shape;
    for (size_t i = 0; i < array_.ndim(); ++i) shape += absl::StrFormat("[%d]", array_.shape(i));
    RaiseInvalid(absl::StrFormat("%s has shape %s, expected [%d][tokens][%d]", name, shape,
                                 head_count, head_dim));
  }
  const auto code = static_cast<nb::dlpack::dtype_code>(array_.dtype().code);
  const int bits = array_.dtype().bits;
  const bool is_float = code == nb::dlpack::dtype_code::Float;
  const bool is_word = code == nb::dlpack::dtype_code::UInt || code == nb::dlpack::dtype_code::Int;
  if (is_float && bits == 32) {
    element_ = Element::kFloat;
  } else if (is_float && bits == 16) {
    element_ = Element::kFp16;
  } else if (bits == 16 && (is_word || code == nb::dlpack::dtype_code::Bfloat)) {
    element_ = Element::kBf16;
  } else {
    RaiseInvalid(
        absl::StrFormat("%s has elements of %d bits (DLPack type %d); accepted: float32, "
                        "bfloat16, float16, or uint16 with the bits of bfloat16",
                        name, bits, static_cast<int>(code)));
  }
}

template <KvRows::Element element>
void KvRows::CopyRows(uint16_t* rows, int32_t head, int64_t begin, int64_t count) const {
  const auto width = static_cast<int64_t>(array_.shape(2));
  const int64_t step = array_.stride(2);
  constexpr int64_t kBytes = element == Element::kFloat ? 4 : 2;
  const auto* base = static_cast<const std::byte*>(array_.data());
  for (int64_t token = 0; token < count; ++token) {
    const std::byte* from =
        base + (head * array_.stride(0) + (begin + token) * array_.stride(1)) * kBytes;
    uint16_t* to = rows + token * width;
    if (element == Element::kBf16 && step == 1) {
      std::memcpy(to, from, static_cast<size_t>(width) * sizeof(uint16_t));
      continue;
    }
    for (int64_t channel = 0; channel < width; ++channel) {
      if constexpr (element == Element::kFloat) {
        float value;
        std::memcpy(&value, from + channel * step * kBytes, sizeof(value));
        to[channel] = kernels::Bf16FromFloat(value);
      } else {
        uint16_t bits;
        std::memcpy(&bits, from + channel * step * kBytes, sizeof(bits));
        to[channel] =
            element == Element::kBf16 ? bits : kernels::Bf16FromFloat(kernels::FloatFromFp16(bits));
      }
    }
  }
}

void KvRows::CopyTo(uint16_t* rows, int32_t head, int64_t begin, int64_t count) const {
  switch (element_) {
    case Element::kBf16:
      return CopyRows<Element::kBf16>(rows, head, begin, count);
    case Element::kFloat:
      return CopyRows<Element::kFloat>(rows, head, begin, count);
    case Element::kFp16:
      return CopyRows<Element::kFp16>(rows, head, begin, count);
  }
}

}  // namespace pagoda::python
