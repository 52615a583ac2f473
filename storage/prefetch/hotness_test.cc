// Goal: a score is the faded count of uses at any time, the wanted tier follows it with hysteresis,
// memory is bounded. Method: cases by hand, and random uses against the sum written out.
#include "storage/prefetch/hotness.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace pagoda::prefetch {
namespace {

void UseTimes(Hotness& hotness, PageId page, int count, absl::Duration now) {
  for (int i = 0; i < count; ++i) hotness.Use({page}, now);
}

TEST(HotnessTest, AUseIsHalfAfterAHalfLife) {
  Hotness hotness({});
  const absl::Duration now = absl::Hours(1);
  hotness.Use({1, 1, 2}, now);
  EXPECT_DOUBLE_EQ(hotness.ScoreOf(1, now), 2);
  EXPECT_DOUBLE_EQ(hotness.ScoreOf(1, now + absl::Seconds(60)), 1);
  EXPECT_DOUBLE_EQ(hotness.ScoreOf(2, now + absl::Seconds(120)), 0.25);
  EXPECT_EQ(hotness.ScoreOf(3, now), 0);
}

TEST(HotnessTest, RandomUsesEqualTheSumWrittenOut) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    std::mt19937 rng(seed);
    Hotness hotness({});
    std::vector<std::pair<PageId, double>> uses;  // page, seconds
    double now = 0;
    for (int step = 0; step < 500; ++step) {
      now += static_cast<double>(rng() % 200);  // far beyond where a plain power would overflow
      const PageId page = 1 + rng() % 5;
      hotness.Use({page}, absl::Seconds(now));
      uses.emplace_back(page, now);
      const PageId asked = 1 + rng() % 5;
      double expected = 0;
      for (const auto& [used, at] : uses) {
        if (used == asked) expected += std::exp2((at - now) / 60);
      }
      ASSERT_NEAR(hotness.ScoreOf(asked, absl::Seconds(now)), expected, 1e-9) << "seed " << seed;
    }
  }
}

TEST(HotnessTest, TiersFollowTheScoreOneAtATimeWithHysteresis) {
  Hotness hotness({});  // host from 3, HBM from 12
  const absl::Duration start = absl::Seconds(10);
  UseTimes(hotness, 1, 2, start);
  EXPECT_EQ(hotness.WantedTier(1, TierKind::kSsd, start), TierKind::kSsd);
  UseTimes(hotness, 1, 14, start);
  EXPECT_EQ(hotness.WantedTier(1, TierKind::kSsd, start), TierKind::kHost);  // not two at once
  EXPECT_EQ(hotness.WantedTier(1, TierKind::kHost, start), TierKind::kHbm);
  const absl::Duration later = start + absl::Seconds(60);  // 8: below 12, above 6
  EXPECT_EQ(hotness.WantedTier(1, TierKind::kHost, later), TierKind::kHost);
  EXPECT_EQ(hotness.WantedTier(1, TierKind::kHbm, later), TierKind::kHbm);
  const absl::Duration cool = start + absl::Seconds(120);  // 4
  EXPECT_EQ(hotness.WantedTier(1, TierKind::kHbm, cool), TierKind::kHost);
  const absl::Duration cold = start + absl::Seconds(240);  // 1: below 1.5
  EXPECT_EQ(hotness.WantedTier(1, TierKind::kHost, cold), TierKind::kSsd);
  EXPECT_EQ(hotness.WantedTier(1, TierKind::kSsd, cold), TierKind::kSsd);
}

TEST(HotnessTest, AScanIsForgottenBeforeWhatIsHot) {
  Hotness::Options options;
  options.pages_max = 100;
  Hotness hotness(options);
  const absl::Duration now = absl::Seconds(5);
  UseTimes(hotness, 1, 10, now);
  for (PageId page = 1000; page < 5000; ++page) {
    hotness.Use({page}, now);
    ASSERT_LE(hotness.page_count(), 100);
  }
  EXPECT_DOUBLE_EQ(hotness.ScoreOf(1, now), 10);
}

}  // namespace
}  // namespace pagoda::prefetch
