// Goal: conversions round to nearest even and come back exactly. Method: all 65536 words both ways,
// and the midpoints between neighbours.
#include "kernels/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace pagoda::kernels {
namespace {

TEST(Float16Test, EveryWordComesBack) {
  for (uint32_t word = 0; word < 65536; ++word) {
    const auto bits = static_cast<uint16_t>(word);
    if (IsFiniteFp16(bits) || (bits & 0x3ff) == 0) {
      ASSERT_EQ(Fp16FromFloat(FloatFromFp16(bits)), bits);
    } else {
      ASSERT_TRUE(std::isnan(FloatFromFp16(Fp16FromFloat(FloatFromFp16(bits)))));
    }
    if (IsFiniteBf16(bits) || (bits & 0x7f) == 0) {
      ASSERT_EQ(Bf16FromFloat(FloatFromBf16(bits)), bits);
    } else {
      ASSERT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(FloatFromBf16(bits)))));
    }
  }
}

// Between two neighbours the midpoint goes to the even word, everything else to the nearer one.
template <typename ToFloat, typename FromFloat>
void ExpectNearest(uint16_t last_finite, ToFloat to_float, FromFloat from_float) {
  for (uint16_t low = 0; low < last_finite; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = to_float(low) + (to_float(high) - to_float(low)) / 2;
    const float below = std::nextafter(middle, 0.0f);
    const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const uint16_t sign : {0x0000, 0x8000}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      ASSERT_EQ(from_float(s * middle), even | sign) << low;
      ASSERT_EQ(from_float(s * below), low | sign) << low;
      ASSERT_EQ(from_float(s * above), high | sign) << low;
    }
  }
}

TEST(Float16Test, RoundsToNearestEven) {
  ExpectNearest(0x7bff, FloatFromFp16, Fp16FromFloat);
  ExpectNearest(0x7f7f, FloatFromBf16, Bf16FromFloat);
}

TEST(Float16Test, OverflowIsInfinity) {
  EXPECT_EQ(Fp16FromFloat(65504.0f), 0x7bff);
  EXPECT_EQ(Fp16FromFloat(65519.99f), 0x7bff);
  EXPECT_EQ(Fp16FromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(Fp16FromFloat(-1e30f), 0xfc00);
  EXPECT_EQ(Bf16FromFloat(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(Fp16FromFloat(0x1p-25f), 0);
  EXPECT_EQ(Fp16FromFloat(std::nextafter(0x1p-25f, 1.0f)), 1);
}

}  // namespace
}  // namespace pagoda::kernels
