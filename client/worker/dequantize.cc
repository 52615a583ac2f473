#include "client/worker/dequantize.h"

#include <cstring>

#include "client/worker/float16.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

constexpr int kBlock = 32;  // elements of a block of the 4-, 5- and 8-bit types
constexpr int kHalf = 16;   // the first half of a block lies in low nibbles, the rest in high

uint16_t LoadUint16(const uint8_t* source) {
  uint16_t value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}
uint32_t LoadUint32(const uint8_t* source) {
  uint32_t value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}
float LoadHalf(const uint8_t* source) { return HalfToFloat(LoadUint16(source)); }

// d, 16 bytes of nibbles: d * (q - 8)
void BlockQ4_0(const uint8_t* block, float* target) {
  const float d = LoadHalf(block);
  const uint8_t* codes = block + 2;
  for (int i = 0; i < kHalf; ++i) {
    target[i] = static_cast<float>((codes[i] & 0x0f) - 8) * d;
    target[i + kHalf] = static_cast<float>((codes[i] >> 4) - 8) * d;
  }
}

// d, m, 16 bytes of nibbles: d * q + m
void BlockQ4_1(const uint8_t* block, float* target) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint8_t* codes = block + 4;
  for (int i = 0; i < kHalf; ++i) {
    target[i] = static_cast<float>(codes[i] & 0x0f) * d + m;
    target[i + kHalf] = static_cast<float>(codes[i] >> 4) * d + m;
  }
}

// The 5-bit code of element i: its nibble, and bit i of the word of fifth bits above it.
int Code5(const uint8_t* nibbles, uint32_t fifth_bits, int i) {
  const int nibble = i < kHalf ? nibbles[i] & 0x0f : nibbles[i - kHalf] >> 4;
  return nibble | static_cast<int>((fifth_bits >> i) & 1) << 4;
}

// d, 4 bytes of fifth bits, 16 bytes of nibbles: d * (q - 16)
void BlockQ5_0(const uint8_t* block, float* target) {
  const float d = LoadHalf(block);
  const uint32_t fifth_bits = LoadUint32(block + 2);
  for (int i = 0; i < kBlock; ++i) {
    target[i] = static_cast<float>(Code5(block + 6, fifth_bits, i) - 16) * d;
  }
}

// d, m, 4 bytes of fifth bits, 16 bytes of nibbles: d * q + m
void BlockQ5_1(const uint8_t* block, float* target) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint32_t fifth_bits = LoadUint32(block + 4);
  for (int i = 0; i < kBlock; ++i) {
    target[i] = static_cast<float>(Code5(block + 8, fifth_bits, i)) * d + m;
  }
}

// d, 32 signed bytes: d * q
void BlockQ8_0(const uint8_t* block, float* target) {
  const float d = LoadHalf(block);
  for (int i = 0; i < kBlock; ++i) {
    target[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
  }
}

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, d. Two halves of 128
// elements; in each, four runs of 32 share the nibble bytes of 64 and the pair bytes of 32.
void BlockQ6_K(const uint8_t* block, float* target) {
  const float d = LoadHalf(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + 64 * half;
    const uint8_t* high = block + 128 + 32 * half;
    const uint8_t* scales = block + 192 + 8 * half;
    for (int i = 0; i < 128; ++i) {
      const int run = i / 32;
      const int lane = i % 32;
      const int low_byte = low[lane + 32 * (run % 2)];
      const int nibble = run < 2 ? low_byte & 0x0f : low_byte >> 4;
      const int code = (nibble | ((high[lane] >> (2 * run)) & 3) << 4) - 32;
      const float scale = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
      target[128 * half + i] = scale * static_cast<float>(code);
    }
  }
}

void DequantizeBlock(TensorType type, const uint8_t* block, float* target) {
  switch (type) {
    case TensorType::kF32:
      std::memcpy(target, block, sizeof(float));
      return;
    case TensorType::kF16:
      *target = LoadHalf(block);
      return;
    case TensorType::kBf16:
      *target = Bfloat16ToFloat(LoadUint16(block));
      return;
    case TensorType::kQ4_0:
      return BlockQ4_0(block, target);
    case TensorType::kQ4_1:
      return BlockQ4_1(block, target);
    case TensorType::kQ5_0:
      return BlockQ5_0(block, target);
    case TensorType::kQ5_1:
      return BlockQ5_1(block, target);
    case TensorType::kQ8_0:
      return BlockQ8_0(block, target);
    case TensorType::kQ6_K:
      return BlockQ6_K(block, target);
  }
}

}  // namespace

uint64_t EncodedBytes(TensorType type, uint64_t element_count) {
  const TensorTypeTraits traits = TraitsOf(type);
  PAGODA_CHECK(element_count % traits.block_elements == 0);
  return element_count / traits.block_elements * traits.block_bytes;
}

void Dequantize(TensorType type, ByteSpan source, absl::Span<float> target) {
  const TensorTypeTraits traits = TraitsOf(type);
  PAGODA_CHECK(source.size() == EncodedBytes(type, target.size()));
  if (target.empty()) return;
  if (type == TensorType::kF32) {
    std::memcpy(target.data(), source.data(), source.size());
    return;
  }
  const auto* block = reinterpret_cast<const uint8_t*>(source.data());
  for (size_t i = 0; i < target.size(); i += traits.block_elements) {
    DequantizeBlock(type, block, target.data() + i);
    block += traits.block_bytes;
  }
}

ByteSpan EncodedRows(const GgufTensor& tensor, uint64_t first_row, uint64_t row_count) {
  const uint64_t total = tensor.element_count / tensor.dims[0];
  PAGODA_CHECK(first_row <= total);
  PAGODA_CHECK(row_count <= total - first_row);
  const uint64_t row_bytes = EncodedBytes(tensor.type, tensor.dims[0]);
  return tensor.data.subspan(first_row * row_bytes, row_count * row_bytes);
}

}  // namespace pagoda
