#include "client/worker/tensor_type.h"

#include <array>

#include "storage/base/check.h"

namespace pagoda {
namespace {

constexpr std::array<TensorTypeTraits, 9> kSupported = {{
    {TensorType::kF32, "F32", 1, 4},
    {TensorType::kF16, "F16", 1, 2},
    {TensorType::kQ4_0, "Q4_0", 32, 18},
    {TensorType::kQ4_1, "Q4_1", 32, 20},
    {TensorType::kQ5_0, "Q5_0", 32, 22},
    {TensorType::kQ5_1, "Q5_1", 32, 24},
    {TensorType::kQ8_0, "Q8_0", 32, 34},
    {TensorType::kQ6_K, "Q6_K", 256, 210},
    {TensorType::kBf16, "BF16", 1, 2},
}};

// ggml_type, in order; empty where ggml removed a type.
constexpr std::array<const char*, 40> kNames = {
    "F32",     "F16",    "Q4_0",    "Q4_1",  "",       "",      "Q5_0",  "Q5_1",
    "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16",  "",
    "",        "",       "TQ1_0",   "TQ2_0", "",       "",      "",      "MXFP4"};

}  // namespace

std::optional<TensorTypeTraits> FindTensorType(uint32_t number) {
  for (const TensorTypeTraits& traits : kSupported) {
    if (static_cast<uint32_t>(traits.type) == number) return traits;
  }
  return std::nullopt;
}

TensorTypeTraits TraitsOf(TensorType type) {
  const std::optional<TensorTypeTraits> traits = FindTensorType(static_cast<uint32_t>(type));
  PAGODA_CHECK(traits.has_value());
  return *traits;
}

absl::string_view TensorTypeName(uint32_t number) {
  if (number >= kNames.size() || kNames[number][0] == '\0') return "unknown";
  return kNames[number];
}

absl::string_view SupportedTensorTypes() {
  return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q6_K";
}

}  // namespace pagoda
