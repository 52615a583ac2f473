// Goal: over any stretch of time no more passes than rate and burst allow, and nothing starves.
// Method: cases by hand, and random items checked against the bound at every moment.
#include "storage/prefetch/bandwidth_budget.h"

#include <gtest/gtest.h>

#include <random>

namespace pagoda::prefetch {
namespace {

TEST(BandwidthBudgetTest, AnItemLargerThanTheBurstPassesAndIsPaidBack) {
  BandwidthBudget budget(/*bytes_per_second=*/100, /*saved_max=*/absl::Seconds(1));
  EXPECT_TRUE(budget.Open(absl::ZeroDuration()));
  budget.Take(350);
  EXPECT_FALSE(budget.Open(absl::ZeroDuration()));
  EXPECT_FALSE(budget.Open(absl::Seconds(2.4)));
  EXPECT_TRUE(budget.Open(absl::Seconds(2.6)));
  EXPECT_TRUE(budget.Open(absl::Seconds(1)));  // a clock that goes back gives nothing
}

TEST(BandwidthBudgetTest, NeverMoreThanRateBurstAndOneItem) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 rng(seed);
    BandwidthBudget budget(1000, absl::Milliseconds(500));
    absl::Duration now = absl::Seconds(100);
    const absl::Duration start = now;
    int64_t taken = 0;
    for (int step = 0; step < 2000; ++step) {
      now += absl::Milliseconds(rng() % 50);
      if (!budget.Open(now)) continue;
      const int64_t bytes = 1 + rng() % 200;
      budget.Take(bytes);
      taken += bytes;
      ASSERT_LE(taken, absl::ToDoubleSeconds(now - start) * 1000 + 500 + 200) << "seed " << seed;
    }
    EXPECT_GE(taken, absl::ToDoubleSeconds(now - start) * 1000 * 0.9);
  }
}

}  // namespace
}  // namespace pagoda::prefetch
