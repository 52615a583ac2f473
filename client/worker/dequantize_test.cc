// Goal: every tensor type decodes bit for bit as in ggml. Method: the hashes in
// tests/golden/dequantize.txt, written with the gguf package from the same pseudo-random bytes;
// edge values of the 16-bit formats by hand.
#include "client/worker/dequantize.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "client/worker/float16.h"
#include "client/worker/splitmix64.h"
#include "client/worker/testing/random_llama.h"
#include "storage/base/digest.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr TensorType kAllTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBf16,
                                    TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0,
                                    TensorType::kQ5_1, TensorType::kQ8_0, TensorType::kQ6_K};

// Where a block has 16-bit floats; the golden script keeps them finite.
std::vector<size_t> FloatOffsets(TensorType type) {
  if (type == TensorType::kQ4_1 || type == TensorType::kQ5_1) return {0, 2};
  if (type == TensorType::kQ6_K) return {208};
  return {0};
}

std::string GoldenBytes(TensorType type, uint64_t block_count) {
  SplitMix64 random(static_cast<uint64_t>(type));
  const size_t block_bytes = TraitsOf(type).block_bytes;
  std::string bytes;
  for (uint64_t i = 0; i < block_count; ++i) {
    std::string block(block_bytes, '\0');
    for (char& byte : block) byte = static_cast<char>(random.Next() >> 56);
    for (const size_t offset : FloatOffsets(type)) {
      block[offset + 1] = static_cast<char>(block[offset + 1] & 0xbb);
    }
    bytes += block;
  }
  return bytes;
}

TEST(DequantizeTest, EqualsTheGoldenHashes) {
  std::map<std::string, TensorType> types;
  for (const TensorType type : kAllTypes) types[TraitsOf(type).name] = type;
  std::ifstream golden("tests/golden/dequantize.txt");
  ASSERT_TRUE(golden) << "run from the repository root";
  std::string line;
  int seen = 0;
  while (std::getline(golden, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name, hash, first;
    uint64_t count = 0;
    fields >> name >> count >> hash >> first;
    ASSERT_TRUE(types.contains(name)) << name;
    const TensorType type = types[name];
    std::vector<float> values(count);
    const std::string bytes = GoldenBytes(type, count / TraitsOf(type).block_elements);
    Dequantize(type, AsBytes(bytes), absl::MakeSpan(values));
    EXPECT_EQ(absl::StrFormat("%08x", std::bit_cast<uint32_t>(values[0])), first) << name;
    const absl::string_view raw(reinterpret_cast<const char*>(values.data()), count * 4);
    EXPECT_EQ(absl::BytesToHexString(
                  absl::string_view(reinterpret_cast<const char*>(Sha256(raw).data()), 32)),
              hash)
        << name;
    ++seen;
  }
  EXPECT_EQ(seen, 8);
}

TEST(DequantizeTest, Float32IsCopied) {
  const float source[] = {1.5F, -0.0F, std::numeric_limits<float>::denorm_min()};
  float target[3];
  Dequantize(TensorType::kF32, ByteSpan(reinterpret_cast<const std::byte*>(source), sizeof(source)),
             absl::MakeSpan(target));
  EXPECT_EQ(std::memcmp(source, target, sizeof(source)), 0);
  Dequantize(TensorType::kF32, ByteSpan(), absl::Span<float>());
}

TEST(DequantizeTest, RowsAreFoundAndChecked) {
  GgufTensor tensor;
  tensor.dims = {64, 3};
  tensor.type = TensorType::kQ4_0;
  tensor.element_count = 192;
  const std::string bytes = GoldenBytes(tensor.type, 6);
  tensor.data = AsBytes(bytes);
  EXPECT_EQ(AsText(EncodedRows(tensor, 1, 2)), absl::string_view(bytes).substr(36, 72));
  EXPECT_TRUE(EncodedRows(tensor, 3, 0).empty());
  EXPECT_DEATH(EncodedRows(tensor, 2, 2), "PAGODA_CHECK");
  EXPECT_DEATH(EncodedRows(tensor, 4, ~uint64_t{0}), "PAGODA_CHECK");
  float target[32];
  EXPECT_DEATH(Dequantize(TensorType::kQ4_0, AsBytes("short"), absl::MakeSpan(target)),
               "PAGODA_CHECK");
}

TEST(DequantizeTest, RandomWeightsHaveTheStatedSpread) {
  for (const TensorType type : kAllTypes) {
    std::vector<float> values(1 << 15);
    const std::string bytes = RandomWeights(type, values.size(), /*scale=*/0.125F, /*seed=*/5);
    Dequantize(type, AsBytes(bytes), absl::MakeSpan(values));
    double square = 0;
    double sum = 0;
    for (const float value : values) {
      sum += value;
      square += double{value} * value;
    }
    const double mean = sum / values.size();
    EXPECT_NEAR(mean, 0, 0.02) << TraitsOf(type).name;
    EXPECT_NEAR(std::sqrt(square / values.size()), 0.125, 0.015) << TraitsOf(type).name;
  }
}

TEST(Float16Test, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_EQ(bits & 0x7c00, 0x7c00u);
      ASSERT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      ASSERT_EQ(FloatToHalf(value), bits) << value;
    }
  }
}

TEST(Float16Test, ValuesAndRounding) {
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0F);
  EXPECT_EQ(HalfToFloat(0xc000), -2.0F);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0F);
  EXPECT_EQ(HalfToFloat(0x0001), std::ldexp(1.0F, -24));
  EXPECT_EQ(HalfToFloat(0x8000), 0.0F);
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
  EXPECT_TRUE(std::isinf(HalfToFloat(0xfc00)));
  EXPECT_EQ(FloatToHalf(65519.996F), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0F), 0x7c00);
  EXPECT_EQ(FloatToHalf(std::ldexp(1.0F, -25)), 0x0000);  // a tie goes to even
  EXPECT_EQ(FloatToHalf(std::ldexp(1.5F, -25)), 0x0001);
  EXPECT_EQ(FloatToHalf(1.0F + std::ldexp(1.0F, -11)), 0x3c00);
  EXPECT_EQ(FloatToHalf(1.0F + std::ldexp(3.0F, -11)), 0x3c02);
  EXPECT_EQ(Bfloat16ToFloat(0x3f80), 1.0F);
  EXPECT_EQ(Bfloat16ToFloat(0xc040), -3.0F);
}

}  // namespace
}  // namespace pagoda
