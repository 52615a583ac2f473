// Goal: the rotation is the one of the header: its signs, its matrix, orthogonal, within its bound.
// Method: the fast form against the sums of the definition, for every head_dim.
#include "kernels/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace pagoda::kernels {
namespace {

TEST(HadamardTest, SignsAreTheStreamOfSplitmix64) {
  uint64_t state = 0x7061676f6461;
  for (const uint64_t word : kHadamardSigns) {
    state += 0x9e3779b97f4a7c15;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    EXPECT_EQ(word, z ^ (z >> 31));
  }
}

TEST(HadamardTest, FastFormIsTheDefinitionWithinTheBound) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int32_t dim = 16; dim <= kHeadDimMax; dim += kOctet) {
    std::vector<float> x(dim);
    std::vector<double> exact_x(dim), exact_y(dim), back(dim);
    double norm = 0;
    for (int32_t c = 0; c < dim; ++c) {
      exact_x[c] = x[c] = normal(random);
      norm += exact_x[c] * exact_x[c];
    }
    const double bound = (std::log2(dim) + 2) * 0x1p-24 * std::sqrt(norm);
    RotateForwardRef(exact_x.data(), exact_y.data(), dim);
    RotateBackwardRef(exact_y.data(), back.data(), dim);
    std::vector<float> y = x;
    RotateForward(y.data(), dim);
    double norm_y = 0;
    for (int32_t c = 0; c < dim; ++c) {
      ASSERT_NEAR(y[c], exact_y[c], bound) << dim << " " << c;
      ASSERT_NEAR(back[c], exact_x[c], 1e-12);
      norm_y += exact_y[c] * exact_y[c];
    }
    ASSERT_NEAR(norm_y, norm, 1e-9);
    RotateBackward(y.data(), dim);
    for (int32_t c = 0; c < dim; ++c) ASSERT_NEAR(y[c], x[c], 2 * bound) << dim << " " << c;
  }
}

TEST(HadamardTest, BlocksArePowersOfTwo) {
  // A unit vector spreads over its block and nowhere else: 80 = 64 + 16.
  for (const int32_t at : {3, 63, 64, 79}) {
    std::vector<float> x(80, 0.0f);
    x[at] = 1;
    RotateForward(x.data(), 80);
    for (int32_t c = 0; c < 80; ++c) {
      const bool same_block = (c < 64) == (at < 64);
      ASSERT_EQ(std::fabs(x[c]), !same_block ? 0.0f : at < 64 ? 0.125f : 0.25f) << at << " " << c;
    }
  }
}

TEST(HadamardTest, ScaleIsTheNearestFloat) {
  for (int32_t size = 8; size <= 256; size *= 2) {
    EXPECT_EQ(HadamardScale(size), static_cast<float>(1 / std::sqrt(static_cast<double>(size))));
  }
}

}  // namespace
}  // namespace pagoda::kernels
