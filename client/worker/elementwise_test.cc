// Goal: the SIMD forms agree with plain formulas in double, for lengths around every vector width,
// and rounding to bf16 agrees bit for bit with the scalar form. Method: random rows of 1 to 70
// elements, special values, and a vocabulary-sized row for the sums.
#include "client/worker/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/float16.h"

namespace pagoda {
namespace {

using Floats = std::vector<float>;

Floats Random(int64_t count, uint32_t seed, float scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  Floats values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

TEST(Elementwise, RmsNorm) {
  for (int64_t count = 1; count <= 70; ++count) {
    const Floats x = Random(count, 1, 3);
    const Floats weight = Random(count, 2);
    Floats y(count);
    RmsNorm(x.data(), weight.data(), count, 1e-5F, y.data());
    double sum = 0;
    for (const float value : x) sum += double{value} * value;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(count) + 1e-5);
    for (int64_t i = 0; i < count; ++i) {
      const double expected = x[i] * scale * weight[i];
      ASSERT_NEAR(y[i], expected, 1e-6 * std::abs(expected)) << count << " " << i;
    }
  }
}

TEST(Elementwise, SiluMultiply) {
  for (int64_t count = 1; count <= 70; ++count) {
    Floats gate = Random(count, 3, 20);
    if (count % 3 == 0) gate[0] = -200;  // exp(200) is beyond float
    if (count % 3 == 1) gate[0] = 200;
    const Floats up = Random(count, 4);
    Floats out(count);
    SiluMultiply(gate.data(), up.data(), count, out.data());
    for (int64_t i = 0; i < count; ++i) {
      const double expected = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
      ASSERT_NEAR(out[i], expected, 1e-6 * std::abs(expected) + 1e-35) << count << " " << i;
    }
  }
}

TEST(Elementwise, RotateHalfSplit) {
  for (int64_t half = 1; half <= 40; ++half) {
    Floats x = Random(2 * half, 5);
    const Floats before = x;
    Floats cosines(half);
    Floats sines(half);
    for (int64_t i = 0; i < half; ++i) {
      cosines[i] = std::cos(static_cast<float>(i));
      sines[i] = std::sin(static_cast<float>(i));
    }
    RotateHalfSplit(cosines.data(), sines.data(), half, x.data());
    for (int64_t i = 0; i < half; ++i) {
      const double a = before[i];
      const double b = before[half + i];
      ASSERT_NEAR(x[i], a * cosines[i] - b * sines[i], 1e-6);
      ASSERT_NEAR(x[half + i], b * cosines[i] + a * sines[i], 1e-6);
    }
  }
}

TEST(Elementwise, RoundToBf16AgreesWithTheScalarForm) {
  Floats x = Random(67, 6, 1e3F);
  const float infinity = std::numeric_limits<float>::infinity();
  // Ties both ways, overflow to infinity, subnormals, both zeros, NaNs with high and low payload.
  for (const uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7f7fffffu, 0x00000001u,
                              0x00008000u, 0x80000000u, 0x7fc00000u, 0x7f800001u, 0xff80ffffu}) {
    x.push_back(std::bit_cast<float>(bits));
  }
  x.push_back(infinity);
  x.push_back(-infinity);
  for (size_t first = 0; first < 20; ++first) {  // other alignments, other tails
    const auto count = static_cast<int64_t>(x.size() - first);
    std::vector<uint16_t> rounded(count);
    RoundToBf16(&x[first], count, rounded.data());
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(rounded[i], kernels::Bf16FromFloat(x[first + i])) << x[first + i];
    }
  }
}

TEST(Elementwise, LogSumExpAndKlDivergence) {
  for (const int64_t count : {1, 2, 17, 1023, 1024, 1025, 49152}) {
    const Floats reference = Random(count, 7, 4);
    const Floats noise = Random(count, 8, 0.01F);
    Floats x = reference;
    for (int64_t i = 0; i < count; ++i) x[i] += noise[i] + 3;  // a shift changes no distribution
    const auto lse = [](const Floats& values) {
      double sum = 0;
      for (const float value : values) sum += std::exp(double{value});
      return std::log(sum);
    };
    const double reference_lse = LogSumExp(reference.data(), count);
    const double x_lse = LogSumExp(x.data(), count);
    ASSERT_NEAR(reference_lse, lse(reference), 1e-6 * std::abs(lse(reference)) + 1e-6) << count;
    ASSERT_NEAR(x_lse, lse(x), 1e-6 * std::abs(lse(x)) + 1e-6) << count;
    double kl = 0;
    const double exact_reference_lse = lse(reference);
    const double exact_x_lse = lse(x);
    for (int64_t i = 0; i < count; ++i) {
      const double log_p = reference[i] - exact_reference_lse;
      kl += std::exp(log_p) * (log_p - (x[i] - exact_x_lse));
    }
    const double measured = KlDivergence(reference.data(), reference_lse, x.data(), x_lse, count);
    EXPECT_NEAR(measured, kl, 0.02 * kl + 2e-8) << count;  // kl is about 5e-5
    EXPECT_LE(KlDivergence(x.data(), x_lse, x.data(), x_lse, count), 1e-9);
  }
}

TEST(Elementwise, KlDivergenceOfFarLogitsStaysFinite) {
  const Floats reference = {0, -300};
  const Floats x = {-300, 0};
  const double kl = KlDivergence(reference.data(), 0, x.data(), 0, 2);
  EXPECT_NEAR(kl, 299, 0.1);
}

}  // namespace
}  // namespace pagoda
