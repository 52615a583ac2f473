// Goal: the choice is the best under the budget and never beyond it. Method: small cases by hand,
// both sides of the budget; all subsets of random gains.
#include "client/lab/layer_choice.h"

#include <gtest/gtest.h>

#include <bit>

#include "client/worker/splitmix64.h"

namespace pagoda::lab {
namespace {

const kernels::PageShape kShape = {30, 3, 64, 64};

TEST(LayerChoice, BitsOfTheShapeThatWasMeasured) {
  EXPECT_DOUBLE_EQ(ProfileBits(kShape, 0), (4.5 + 4.25) / 2);
  EXPECT_DOUBLE_EQ(ProfileBits(kShape, 6), (4.5 + 4.25 * 6 / 30 + 4.25) / 2);
  EXPECT_DOUBLE_EQ(ProfileBits(kShape, 30), (8.75 + 4.25) / 2);
  EXPECT_DOUBLE_EQ(ProfileBits({2, 1, 128, 32}, 1), (4.25 + .5 + 4.25 / 2 + 4.25) / 2);
}

TEST(LayerChoice, TheBudgetIsReachedAndNotPassed) {
  const kernels::PageShape shape = {4, 1, 64, 64};
  const std::vector<double> gains = {0.1, 0.4, 0.2, 0.3};
  const double two = ProfileBits(shape, 2);
  EXPECT_EQ(ChooseLayers(shape, gains, two), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(ChooseLayers(shape, gains, two - 1e-9), (std::vector<int32_t>{1}));
  EXPECT_EQ(ChooseLayers(shape, gains, 4), (std::vector<int32_t>{}));
  EXPECT_EQ(ChooseLayers(shape, gains, 16), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(LayerChoice, ALayerWithoutGainIsLeftOut) {
  const kernels::PageShape shape = {3, 1, 64, 64};
  EXPECT_EQ(ChooseLayers(shape, {0, 0.5, -0.1}, 16), (std::vector<int32_t>{1}));
  // Of equals the first.
  EXPECT_EQ(ChooseLayers(shape, {0.5, 0.5, 0.5}, ProfileBits(shape, 2)),
            (std::vector<int32_t>{0, 1}));
}

TEST(LayerChoice, NoOtherSetWithinTheBudgetGainsMore) {
  SplitMix64 random(7);
  const kernels::PageShape shape = {8, 1, 64, 64};
  for (int round = 0; round < 50; ++round) {
    std::vector<double> gains;
    for (int i = 0; i < 8; ++i) gains.push_back(random.Unit() - 0.3);
    const double budget = 4 + 3 * random.Unit();
    double chosen = 0;
    for (const int32_t layer : ChooseLayers(shape, gains, budget)) chosen += gains[layer];
    for (uint32_t set = 0; set < 256; ++set) {
      if (ProfileBits(shape, std::popcount(set)) > budget) continue;
      double gain = 0;
      for (int i = 0; i < 8; ++i) gain += (set >> i & 1) != 0 ? gains[i] : 0;
      ASSERT_LE(gain, chosen + 1e-12) << "round " << round << ", set " << set;
    }
  }
}

TEST(LayerChoice, PlanesOfTheChosenLayers) {
  const std::vector<LayerPlanes> planes = PlanesOf(3, {1});
  EXPECT_EQ(planes, (std::vector<LayerPlanes>{{}, {.k_lo = true}, {}}));
}

}  // namespace
}  // namespace pagoda::lab
