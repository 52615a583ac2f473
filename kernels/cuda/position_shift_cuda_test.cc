// Goal: queries turned on the device are those of the specification. Method: random rows, whole and
// partial rotary channels, shifts of both signs up to the limit, in place too. The same source runs
// on the emulated device and on a GPU.
#include "kernels/cuda/position_shift_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "kernels/cuda/testing/device.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels::cuda {
namespace {

TEST(PositionShiftCudaTest, TurnedQueriesAreThoseOfTheSpecification) {
  constexpr int64_t kRows = 7;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const auto& [head_dim, rope] :
       {std::pair(64, Rope{1e4, 64, 1}), std::pair(80, Rope{1e6, 32, 4}),
        std::pair(256, Rope{5e5, 256, 1})}) {
    for (const int64_t shift : {int64_t{0}, int64_t{1}, int64_t{-4096}, int64_t{1} << 24}) {
      SCOPED_TRACE(testing::Message() << head_dim << ", shift " << shift);
      std::vector<float> q(static_cast<size_t>(kRows * head_dim));
      for (float& x : q) x = normal(random);
      DeviceVector<float> in_place(q);
      DeviceVector<float> turned(q.size());
      TurnQueriesParams p{in_place.data(), turned.data(), kRows, head_dim, shift, rope};
      PAGODA_ASSERT_OK(TurnQueriesCuda(p, nullptr));
      p.turned = in_place.data();
      PAGODA_ASSERT_OK(TurnQueriesCuda(p, nullptr));
      const std::vector<float> result = turned.ToHost();
      EXPECT_EQ(result, in_place.ToHost());
      const RopeAngles angles = AnglesOf(rope, -shift);
      for (int64_t row = 0; row < kRows; ++row) {
        std::vector<double> x(q.begin() + row * head_dim, q.begin() + (row + 1) * head_dim);
        TurnRef(angles, x.data());
        const int32_t half = rope.rope_dims / 2;
        for (int32_t c = 0; c < head_dim; ++c) {
          const int32_t pair = c % half;
          const double norm = c < rope.rope_dims ? std::hypot(x[pair], x[half + pair]) : 0;
          ASSERT_NEAR(result[row * head_dim + c], x[c], 0x1p-22 * norm) << c;
        }
      }
    }
  }
}

TEST(PositionShiftCudaTest, WrongCallsAreRefused) {
  DeviceVector<float> q(64);
  const TurnQueriesParams good{q.data(), q.data(), 1, 64, 5, Rope{1e4, 64, 1}};
  PAGODA_EXPECT_OK(TurnQueriesCuda(good, nullptr));
  const std::vector<std::function<void(TurnQueriesParams&)>> breaks = {
      [](TurnQueriesParams& p) { p.q = nullptr; },
      [](TurnQueriesParams& p) { p.row_count = 0; },
      [](TurnQueriesParams& p) { p.head_dim = 12; },
      [](TurnQueriesParams& p) { p.shift = (int64_t{1} << 24) + 1; },
      [](TurnQueriesParams& p) { p.rope.rope_dims = 65; },
      [](TurnQueriesParams& p) { p.rope.theta = -1; },
  };
  for (size_t i = 0; i < breaks.size(); ++i) {
    TurnQueriesParams p = good;
    breaks[i](p);
    EXPECT_THAT(TurnQueriesCuda(p, nullptr), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
  }
}

}  // namespace
}  // namespace pagoda::kernels::cuda
