// Goal: the band of a re-use is that of its LRU stack distance, and the sample stays in its limits.
// Method: small cases by hand; seeded random streams against a list that is searched each time.
#include "storage/policy/reuse_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>

namespace pagoda::policy {
namespace {

TEST(ReuseStackTest, BandsAreMultiplesOfTheCapacity) {
  ReuseStack stack;
  stack.Fit(/*capacity_bytes=*/2, /*entry_count=*/2);
  for (uint64_t page = 1; page <= 16; ++page) EXPECT_EQ(stack.Use(page, 1), ReuseStack::kNoBand);
  EXPECT_EQ(stack.sampled_count(), 16);
  EXPECT_EQ(stack.Use(1, 1), 3);   // the oldest of 16: within 8 capacities
  EXPECT_EQ(stack.Use(1, 1), 0);   // the newest
  EXPECT_EQ(stack.Use(16, 1), 0);  // the second
  EXPECT_EQ(stack.Use(14, 1), 1);  // 16, 1, 15, 14
  EXPECT_EQ(stack.Use(17, 1), ReuseStack::kNoBand);
  EXPECT_EQ(stack.Use(2, 1), ReuseStack::kNoBand);  // pushed out
}

TEST(ReuseStackTest, BytesCountNotPages) {
  ReuseStack stack;
  stack.Fit(100, 4);
  stack.Use(1, 10);
  stack.Use(2, 95);
  EXPECT_EQ(stack.Use(1, 10), 1);
  stack.Use(3, 1000);  // larger than the tier: alone in the first band
  EXPECT_EQ(stack.Use(3, 1000), 0);
  EXPECT_EQ(stack.Use(1, 10), 1);
}

TEST(ReuseStackTest, RandomStreamsEqualTheDefinition) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    std::mt19937 rng(seed);
    const int64_t capacity = 3 + static_cast<int64_t>(rng() % 20);
    ReuseStack stack;
    stack.Fit(capacity, capacity);
    std::list<uint64_t> model;  // newest first, all of one byte
    for (int step = 0; step < 4000; ++step) {
      const uint64_t page = 1 + rng() % (1 + rng() % 200);
      const auto it = std::find(model.begin(), model.end(), page);
      int band = ReuseStack::kNoBand;
      if (it != model.end()) {
        const int64_t at = std::distance(model.begin(), it);
        band = at < capacity ? 0 : at < 2 * capacity ? 1 : at < 4 * capacity ? 2 : 3;
        model.erase(it);
      }
      model.push_front(page);
      if (static_cast<int64_t>(model.size()) > 8 * capacity) model.pop_back();
      ASSERT_EQ(stack.Use(page, 1), band) << "seed " << seed << " step " << step;
      ASSERT_EQ(stack.sampled_count(), static_cast<int64_t>(model.size()));
    }
  }
}

TEST(ReuseStackTest, TheSampleFitsTheTier) {
  ReuseStack stack;
  constexpr int64_t kEntries = 1 << 20;
  stack.Fit(kEntries, kEntries);
  EXPECT_GT(stack.shift(), 0);
  for (uint64_t page = 1; page <= 16 * kEntries; ++page) {
    if (stack.Samples(page)) stack.Use(page, 1);
  }
  EXPECT_LE(stack.sampled_count(), ReuseStack::kSampleMax);
  EXPECT_GT(stack.sampled_count(), ReuseStack::kSampleMax / 4);
  // A page as many pages back as the tier is large is at the end of the first band.
  int64_t in_first = 0;
  for (uint64_t page = 16 * kEntries; page > 16 * kEntries - 3 * kEntries; --page) {
    if (stack.Samples(page) && stack.Use(page, 1) == 0) ++in_first;
  }
  EXPECT_NEAR(static_cast<double>(in_first << stack.shift()), kEntries, 0.1 * kEntries);

  stack.Fit(16, 16);  // a small tier now
  EXPECT_EQ(stack.shift(), 0);
  EXPECT_LE(stack.sampled_count(), 128);
}

}  // namespace
}  // namespace pagoda::policy
