// Goal: merging on the device is that of the specification in any order and split, and empty states
// change nothing. Method: random states of very different weights, some empty, merged at once and
// one by one, in place too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/testing/device.h"
#include "kernels/merge_states.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

struct Parts {
  Parts(int32_t part_count, int64_t row_count, int32_t head_dim)
      : count(part_count), rows(row_count), dim(head_dim) {
    std::mt19937 random(static_cast<uint32_t>(part_count + head_dim));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < part_count * row_count; ++i) {
      const bool empty = i % 5 == 2 || i % rows == 1;  // row 1 is empty in all parts
      lse2.push_back(empty ? kEmpty : 20 * normal(random));
      for (int32_t c = 0; c < head_dim; ++c) o.push_back(empty ? 0.0f : normal(random));
    }
  }
  int32_t count;
  int64_t rows;
  int32_t dim;
  std::vector<float> o;
  std::vector<float> lse2;
};

void ExpectMerged(const Parts& parts, const std::vector<float>& o, const std::vector<float>& lse2) {
  std::vector<float> ref_o(parts.o.begin(), parts.o.begin() + parts.rows * parts.dim);
  std::vector<float> ref_lse2(parts.lse2.begin(), parts.lse2.begin() + parts.rows);
  for (int32_t i = 1; i < parts.count; ++i) {
    std::vector<float> other(parts.o.begin() + i * parts.rows * parts.dim,
                             parts.o.begin() + (i + 1) * parts.rows * parts.dim);
    std::vector<float> other_lse2(parts.lse2.begin() + i * parts.rows,
                                  parts.lse2.begin() + (i + 1) * parts.rows);
    MergeStatesRef({ref_o.data(), ref_lse2.data()}, {other.data(), other_lse2.data()}, parts.rows,
                   parts.dim);
  }
  // The bound of merge_states.h, for each merge of the chain; no |o_i| is above 6.
  const double bound = 0x1p-20 * 6 * parts.count;
  for (size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], ref_o[i], bound) << i;
  for (size_t i = 0; i < lse2.size(); ++i) {
    if (ref_lse2[i] == kEmpty) {
      EXPECT_EQ(lse2[i], kEmpty);
      continue;
    }
    EXPECT_NEAR(lse2[i], ref_lse2[i], 0x1p-20 * parts.count * std::fabs(ref_lse2[i])) << i;
  }
}

TEST(MergeStatesCudaTest, AllAtOnceIsOneByOne) {
  for (const int32_t part_count : {1, 2, 3, 40}) {
    for (const int32_t head_dim : {64, 80, 200}) {
      SCOPED_TRACE(testing::Message() << part_count << " parts of " << head_dim);
      const Parts parts(part_count, 7, head_dim);
      DeviceVector<float> part_o(parts.o);
      DeviceVector<float> part_lse2(parts.lse2);
      DeviceVector<float> o(static_cast<size_t>(parts.rows * head_dim));
      DeviceVector<float> lse2(static_cast<size_t>(parts.rows));
      MergeParams p = {part_o.data(), part_lse2.data(), o.data(), lse2.data(),
                       parts.rows,    part_count,       head_dim};
      PAGODA_ASSERT_OK(MergeStatesCuda(p, nullptr));
      ExpectMerged(parts, o.ToHost(), lse2.ToHost());
      p.o = part_o.data();
      p.lse2 = part_lse2.data();
      PAGODA_ASSERT_OK(MergeStatesCuda(p, nullptr));  // in place
      std::vector<float> first = part_o.ToHost();
      first.resize(o.size());
      EXPECT_EQ(first, o.ToHost());
    }
  }
}

TEST(MergeStatesCudaTest, EmptyStatesChangeNothing) {
  Parts parts(3, 4, 64);
  for (int64_t row = 0; row < parts.rows; ++row) {
    parts.lse2[row] = 3.1f + row;
    for (int32_t i = 1; i < 3; ++i) parts.lse2[i * parts.rows + row] = kEmpty;
  }
  DeviceVector<float> part_o(parts.o);
  DeviceVector<float> part_lse2(parts.lse2);
  PAGODA_ASSERT_OK(MergeStatesCuda(
      {part_o.data(), part_lse2.data(), part_o.data(), part_lse2.data(), parts.rows, 3, 64},
      nullptr));
  EXPECT_EQ(part_o.ToHost(), parts.o);
  EXPECT_EQ(part_lse2.ToHost(), parts.lse2);
}

TEST(MergeStatesCudaTest, WhatIsNotANumberIsHandedOn) {
  Parts parts(3, 2, 64);
  parts.lse2[parts.rows] = std::numeric_limits<float>::quiet_NaN();  // row 0 of the second part
  DeviceVector<float> part_o(parts.o);
  DeviceVector<float> part_lse2(parts.lse2);
  PAGODA_ASSERT_OK(MergeStatesCuda(
      {part_o.data(), part_lse2.data(), part_o.data(), part_lse2.data(), parts.rows, 3, 64},
      nullptr));
  EXPECT_TRUE(std::isnan(part_lse2.ToHost()[0]));
  EXPECT_TRUE(std::isnan(part_o.ToHost()[0]));
  EXPECT_FALSE(std::isnan(part_lse2.ToHost()[1]));
}

TEST(MergeStatesCudaTest, WrongCallsAreRefused) {
  DeviceVector<float> f(64);
  float* x = f.data();
  for (const MergeParams& p :
       {MergeParams{x, x, x, x, 0, 1, 64}, MergeParams{x, x, x, x, 1, 0, 64},
        MergeParams{x, x, x, x, 1, 1, 257}, MergeParams{x, nullptr, x, x, 1, 1, 64}}) {
    EXPECT_THAT(MergeStatesCuda(p, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace pagoda::kernels::cuda
