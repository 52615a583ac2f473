// Goal: a conversation is due when its tenant's turns come back, not before and not for ever.
// Method: conversations with known gaps, by hand; random runs for bounds and for the ages promised.
#include "storage/prefetch/return_predictor.h"

#include <gtest/gtest.h>

#include <random>

namespace pagoda::prefetch {
namespace {

constexpr uint32_t kTenant = 3;

std::vector<PageId> Chain(PageId first, int count) {
  std::vector<PageId> chain;
  for (int i = 0; i < count; ++i) chain.push_back(first + static_cast<PageId>(i));
  return chain;
}

// Ten conversations that come back after 100 to 190 seconds.
absl::Duration Teach(ReturnPredictor& predictor, uint32_t tenant) {
  absl::Duration now = absl::Seconds(1000);
  for (int i = 0; i < 10; ++i) {
    const PageId first = 10000 + 100 * static_cast<PageId>(i);
    predictor.OnLookup(tenant, Chain(first, 3), now);
    now += absl::Seconds(100 + 10 * i);
    predictor.OnLookup(tenant, Chain(first, 5), now);
  }
  predictor.TakeDue(now + absl::Hours(1));  // of what was taught nothing is left to predict
  return now + absl::Hours(1);
}

TEST(GapHistogramTest, QuantilesAreEdgesOfQuarterOctaves) {
  GapHistogram gaps;
  for (int i = 0; i < 9; ++i) gaps.Add(absl::Seconds(100));
  gaps.Add(absl::Seconds(1000));
  EXPECT_LE(gaps.LowerEdge(0.2), absl::Seconds(100));
  EXPECT_GE(gaps.LowerEdge(0.2), absl::Seconds(84));
  EXPECT_GT(gaps.UpperEdge(0.2), absl::Seconds(100));
  EXPECT_GT(gaps.UpperEdge(0.95), absl::Seconds(1000));
  gaps.Add(absl::ZeroDuration());
  gaps.Add(absl::Hours(10000));
  for (int i = 0; i < 100000; ++i) gaps.Add(absl::Seconds(5));
  EXPECT_LT(gaps.count(), 1024);
  EXPECT_LE(gaps.LowerEdge(0.01), absl::Seconds(5));  // what was, fades
}

TEST(ReturnPredictorTest, DueFromTheLowQuantileUntilTheHighOne) {
  ReturnPredictor predictor({});
  const absl::Duration now = Teach(predictor, kTenant);
  EXPECT_EQ(predictor.gap_count(kTenant), 10);
  predictor.OnLookup(kTenant, Chain(1, 4), now);
  EXPECT_TRUE(predictor.TakeDue(now + absl::Seconds(80)).empty());
  const auto due = predictor.TakeDue(now + absl::Seconds(120));
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].tail, 4u);
  EXPECT_GE(due[0].give_up, now + absl::Seconds(180));
  EXPECT_LE(due[0].give_up, now + absl::Seconds(240));
  EXPECT_TRUE(predictor.TakeDue(now + absl::Seconds(121)).empty());  // once
  // It came back: predicted anew from there, and late predictions are dropped.
  predictor.OnLookup(kTenant, Chain(1, 6), now + absl::Seconds(150));
  EXPECT_EQ(predictor.gap_count(kTenant), 11);
  EXPECT_TRUE(predictor.TakeDue(now + absl::Hours(1)).empty());
}

TEST(ReturnPredictorTest, PushedPagesMoveTheEndOfTheConversation) {
  ReturnPredictor predictor({});
  const absl::Duration now = Teach(predictor, kTenant);
  predictor.OnLookup(kTenant, Chain(1, 2), now);
  predictor.OnCommit(2, 3, now + absl::Seconds(50));
  predictor.OnCommit(3, 4, now + absl::Seconds(60));
  predictor.OnCommit(77, 78, now);  // of no conversation
  EXPECT_TRUE(predictor.TakeDue(now + absl::Seconds(120)).empty());
  const auto due = predictor.TakeDue(now + absl::Seconds(180));
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].tail, 4u);
}

TEST(ReturnPredictorTest, NothingIsPredictedFromTooLittle) {
  ReturnPredictor predictor({});
  const absl::Duration now = absl::Seconds(10);
  predictor.OnLookup(kTenant, Chain(1, 2), now);
  predictor.OnLookup(kTenant, Chain(1, 2), now + absl::Milliseconds(20));  // the same turn
  EXPECT_EQ(predictor.gap_count(kTenant), 0);
  predictor.OnLookup(kTenant, {}, now);
  predictor.OnLookup(kTenant, Chain(1, 3), now + absl::Seconds(30));
  EXPECT_EQ(predictor.gap_count(kTenant), 1);
  EXPECT_TRUE(predictor.TakeDue(now + absl::Seconds(70)).empty());
  Teach(predictor, kTenant + 1);  // another tenant's rhythm is not this one's
  EXPECT_EQ(predictor.gap_count(kTenant), 1);
}

TEST(ReturnPredictorTest, RandomRunsStayWithinBounds) {
  ReturnPredictor::Options options;
  options.conversations_max = 50;
  options.tenants_max = 4;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    std::mt19937 rng(seed);
    ReturnPredictor predictor(options);
    absl::Duration now = absl::Seconds(1);
    for (int step = 0; step < 3000; ++step) {
      now += absl::Milliseconds(rng() % 3000);
      const PageId first = 1 + 20 * (rng() % 100);
      switch (rng() % 3) {
        case 0:
          predictor.OnCommit(first + rng() % 10, first + 10 + rng() % 5, now);
          break;
        case 1:
          for (const auto& due : predictor.TakeDue(now)) ASSERT_GT(due.give_up, now);
          break;
        default:
          predictor.OnLookup(static_cast<uint32_t>(first % 7), Chain(first, 1 + rng() % 12), now);
      }
      ASSERT_LE(predictor.conversation_count(), 50) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace pagoda::prefetch
