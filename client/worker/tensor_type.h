// The ggml tensor types this worker reads, with their block shapes. A row of a tensor is a whole
// number of blocks; a block of `block_elements` numbers takes `block_bytes` bytes.
//
// Source  ggml's block_q4_0 ... block_q6_K; numbers as they stand in GGUF files
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace pagoda {

enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ6_K = 14,
  kBf16 = 30,
};

struct TensorTypeTraits {
  TensorType type;
  const char* name;
  uint32_t block_elements;
  uint32_t block_bytes;
};

// Empty for a type that this worker cannot read.
std::optional<TensorTypeTraits> FindTensorType(uint32_t number);

// REQUIRES: `type` is one of the enumerators.
TensorTypeTraits TraitsOf(TensorType type);

// ggml's name of any type number, also of those we cannot read ("Q4_K"); "unknown" beyond its
// table.
absl::string_view TensorTypeName(uint32_t number);

// "F32, F16, ..." for messages.
absl::string_view SupportedTensorTypes();

}  // namespace pagoda
