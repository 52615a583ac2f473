// Goal: each policy's rule, on cases small enough to be done by hand. Method: a few entries, every
// victim named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "storage/policy/attention_policy.h"
#include "storage/policy/hybrid_policy.h"
#include "storage/policy/lfu_policy.h"
#include "storage/policy/make_policy.h"
#include "storage/policy/s3fifo_policy.h"

namespace pagoda::policy {
namespace {

using Ids = std::vector<EntryId>;

Ids Pick(EvictionPolicy& policy, int64_t bytes) {
  return policy.PickVictims(bytes, [](EntryId) { return true; });
}

void InsertRoots(EvictionPolicy& policy, EntryId count) {
  for (EntryId id = 1; id <= count; ++id) policy.Insert({id, kNoEntry, 1, 100 + id});
}

// ---- all ----------------------------------------------------------------------------------------

TEST(EveryPolicyTest, AskingForTheOrderChangesNothing) {
  for (const char* name : {"lru", "lfu", "attention", "hybrid", "s3fifo", "cohort"}) {
    auto asked = *MakePolicy(name);
    auto other = *MakePolicy(name);
    std::mt19937 rng(1);
    for (int step = 0; step < 3000; ++step) {
      const EntryId id = 1 + rng() % 60;
      const uint32_t what = rng() % 4;
      const double mass = rng() % 100 / 100.0;
      for (EvictionPolicy* policy : {asked.get(), other.get()}) {
        policy->set_capacity_bytes(50);
        if (!policy->resident(id)) {
          policy->Insert({id, id / 2, 1, id});
        } else if (what == 0 && policy->child_count(id) == 0) {
          policy->Remove(id);
        } else if (what == 1) {
          policy->ReportAttention(id, mass);
        } else {
          policy->Touch(id);
        }
      }
      for (EntryId each = 1; each <= 60; ++each) {
        if (asked->resident(each)) asked->OrderOf(each);
      }
      if (step % 10 != 0) continue;
      ASSERT_EQ(Pick(*asked, 5), Pick(*other, 5)) << name << " step " << step;
    }
  }
}

TEST(EveryPolicyTest, TheOrderIsThatOfTheVictims) {
  for (const char* name : {"lru", "lfu", "attention", "hybrid", "s3fifo", "cohort"}) {
    auto policy = *MakePolicy(name);
    InsertRoots(*policy, 50);
    std::mt19937 rng(2);
    for (int i = 0; i < 100; ++i) {
      const bool fifo = policy->name() == "s3fifo";  // there one use counts for nothing, two do
      const EntryId id = fifo ? 1 + i % 50 : 1 + rng() % 50;
      if (!fifo || i < 50) policy->Touch(id);
      if (i % 3 == 0) policy->ReportAttention(id, rng() % 100 / 100.0);
    }
    const Ids victims = Pick(*policy, 50);
    Ids ordered = victims;
    std::sort(ordered.begin(), ordered.end(),
              [&](EntryId a, EntryId b) { return policy->OrderOf(a) < policy->OrderOf(b); });
    EXPECT_EQ(ordered, victims) << name;
  }
}

TEST(EveryPolicyTest, S3FifoOrdersByTheRoundsThatUsesKeepAnEntry) {
  S3FifoPolicy fifo;
  InsertRoots(fifo, 4);
  fifo.Touch(2);
  fifo.Touch(2);
  fifo.Touch(3);
  EXPECT_LT(fifo.OrderOf(1), fifo.OrderOf(3));  // one use is not enough
  EXPECT_LT(fifo.OrderOf(3), fifo.OrderOf(4));
  EXPECT_LT(fifo.OrderOf(4), fifo.OrderOf(2));
}

// ---- lfu ----------------------------------------------------------------------------------------

TEST(LfuPolicyTest, FewestUsesFirstThenLeastRecent) {
  LfuPolicy lfu;
  InsertRoots(lfu, 4);
  lfu.Touch(1);
  lfu.Touch(1);
  lfu.Touch(2);
  lfu.Touch(3);
  EXPECT_EQ(Pick(lfu, 4), Ids({4, 2, 3, 1}));
  lfu.Remove(1);
  lfu.Insert({1, kNoEntry, 1});  // its uses are forgotten
  EXPECT_EQ(Pick(lfu, 4), Ids({4, 1, 2, 3}));
}

TEST(LfuPolicyTest, AFrequentLeafKeepsItsRareParent) {
  LfuPolicy lfu;
  lfu.Insert({1, kNoEntry, 1});
  lfu.Insert({2, 1, 1});
  lfu.Insert({3, kNoEntry, 1});
  lfu.Touch(2);
  lfu.Touch(3);
  EXPECT_EQ(Pick(lfu, 3), Ids({2, 1, 3}));  // 1 is the rarest, once 2 is picked
}

TEST(LfuPolicyTest, UsesBeyondTheLimitAreOne) {
  LfuPolicy lfu;
  InsertRoots(lfu, 2);
  for (int i = 0; i < 70000; ++i) lfu.Touch(1);
  for (int i = 0; i < 66000; ++i) lfu.Touch(2);
  EXPECT_EQ(Pick(lfu, 2), Ids({1, 2}));  // equals: the least recent
}

// ---- attention ----------------------------------------------------------------------------------

TEST(AttentionPolicyTest, LeastMeanOfTheLastFiveFirst) {
  AttentionPolicy attention;
  InsertRoots(attention, 3);
  for (const double mass : {0.0, 0.5, 0.5, 0.5, 0.5, 0.5}) attention.ReportAttention(1, mass);
  attention.ReportAttention(2, 0.45);
  for (const double mass : {1.0, 0.25}) attention.ReportAttention(3, mass);
  EXPECT_EQ(Pick(attention, 3), Ids({2, 1, 3}));  // 0.45, 0.5 (the first 0 is forgotten), 0.625
  attention.ReportAttention(3, 0.0);              // 0.42
  EXPECT_EQ(Pick(attention, 3), Ids({3, 2, 1}));
}

TEST(AttentionPolicyTest, WithoutAReportAnEntryIsAverage) {
  AttentionPolicy attention;
  InsertRoots(attention, 3);
  attention.ReportAttention(1, 0.2);
  attention.ReportAttention(2, 0.6);
  attention.Touch(3);                  // 0.4 from now on
  attention.Insert({4, kNoEntry, 1});  // 0.4 too
  EXPECT_EQ(Pick(attention, 4), Ids({1, 3, 4, 2}));
}

TEST(AttentionPolicyTest, NoNumbersAreIgnored) {
  AttentionPolicy attention;
  InsertRoots(attention, 2);
  attention.ReportAttention(1, 0.5);
  attention.ReportAttention(2, 0.25);
  for (const double mass :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    attention.ReportAttention(2, mass);
  }
  EXPECT_EQ(Pick(attention, 2), Ids({2, 1}));
  attention.ReportAttention(2, 1e300);
  EXPECT_EQ(Pick(attention, 2), Ids({1, 2}));
}

// ---- hybrid -------------------------------------------------------------------------------------

TEST(HybridPolicyTest, RanksAreSummedByTheirWeights) {
  HybridPolicy hybrid((HybridOptions()));
  InsertRoots(hybrid, 4);
  for (int i = 0; i < 4; ++i) hybrid.Touch(1);
  hybrid.Touch(2);
  hybrid.Touch(3);
  hybrid.Touch(4);
  // Recency of 1 to 4: ranks 1/8, 3/8, 5/8, 7/8. Uses: 1 has 7/8, the others 3/8. Without masses
  // the weights are 5/7 and 2/7: 0.339, 0.375, 0.554, 0.732.
  EXPECT_EQ(Pick(hybrid, 4), Ids({1, 2, 3, 4}));
  HybridPolicy frequency({.recency_weight = 0.2, .attention_weight = 0.3, .frequency_weight = 0.5});
  InsertRoots(frequency, 4);
  for (int i = 0; i < 4; ++i) frequency.Touch(1);
  for (EntryId id = 2; id <= 4; ++id) frequency.Touch(id);
  // 0.661, 0.375, 0.446, 0.518
  EXPECT_EQ(Pick(frequency, 4), Ids({2, 3, 4, 1}));
}

TEST(HybridPolicyTest, AttentionCountsOnceThereIsSome) {
  HybridPolicy hybrid((HybridOptions()));
  InsertRoots(hybrid, 3);
  hybrid.ReportAttention(1, 0.9);
  hybrid.ReportAttention(2, 0.1);
  // Recency 1/6, 3/6, 5/6; attention 3/4, 1/4, and the middle; uses are equal: 1/2.
  // 1: .083 + .225 + .1 = .408; 2: .25 + .075 + .1 = .425; 3: .417 + .15 + .1 = .667
  EXPECT_EQ(Pick(hybrid, 3), Ids({1, 2, 3}));
  hybrid.Remove(3);  // a round ends
  // Recency 1/4, 3/4; attention 3/4, 1/4: .125 + .225 = .35; .375 + .075 = .45
  EXPECT_EQ(Pick(hybrid, 2), Ids({1, 2}));
  HybridPolicy attention({.recency_weight = 0.2, .attention_weight = 0.8, .frequency_weight = 0});
  InsertRoots(attention, 2);
  attention.ReportAttention(1, 0.9);
  attention.ReportAttention(2, 0.1);
  EXPECT_EQ(Pick(attention, 2), Ids({2, 1}));
}

TEST(HybridPolicyTest, WrongWeightsAreNamed) {
  EXPECT_TRUE(HybridOptions().Validate().ok());
  EXPECT_THAT(HybridOptions{.recency_weight = -0.5}.Validate().message(),
              ::testing::HasSubstr("weight -0.5 is not in [0, 1]"));
  EXPECT_THAT((HybridOptions{.recency_weight = 0, .attention_weight = 1, .frequency_weight = 0})
                  .Validate()
                  .message(),
              ::testing::HasSubstr("both 0"));
}

// ---- s3fifo -------------------------------------------------------------------------------------

TEST(S3FifoPolicyTest, OneUseIsNotEnoughForTheMainQueue) {
  S3FifoPolicy s3fifo;
  s3fifo.set_capacity_bytes(10);
  InsertRoots(s3fifo, 10);
  s3fifo.Touch(1);
  s3fifo.Touch(2);
  s3fifo.Touch(2);
  // 2 moves to the main queue; the small one has a tenth until its last entry is picked.
  EXPECT_EQ(Pick(s3fifo, 8), Ids({1, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(S3FifoPolicyTest, WhatComesBackSoonEntersTheMainQueue) {
  S3FifoPolicy s3fifo;
  s3fifo.set_capacity_bytes(10);
  InsertRoots(s3fifo, 10);
  ASSERT_EQ(Pick(s3fifo, 1), Ids({1}));
  s3fifo.Remove(1);
  s3fifo.Insert({1, kNoEntry, 1, 101});  // its ghost is there
  EXPECT_EQ(Pick(s3fifo, 9), Ids({2, 3, 4, 5, 6, 7, 8, 9, 10}));
  for (EntryId id = 2; id <= 10; ++id) s3fifo.Remove(id);
  // The small queue is less than a tenth: the main one gives, but an entry with a use pays first.
  s3fifo.Insert({11, kNoEntry, 1, 111});
  s3fifo.Resize(1, 9);
  s3fifo.set_capacity_bytes(20);
  EXPECT_EQ(Pick(s3fifo, 1), Ids({1}));
  s3fifo.Touch(1);
  EXPECT_EQ(Pick(s3fifo, 1), Ids({1}));
}

TEST(S3FifoPolicyTest, AParentWhoseTurnComesCountsAsUsed) {
  S3FifoPolicy s3fifo;
  s3fifo.set_capacity_bytes(4);
  s3fifo.Insert({1, kNoEntry, 1, 101});
  s3fifo.Insert({2, kNoEntry, 1, 102});
  s3fifo.Insert({3, 1, 1, 103});
  s3fifo.Insert({4, kNoEntry, 1, 104});
  EXPECT_EQ(Pick(s3fifo, 1), Ids({2}));  // 1 has a child: it is in the main queue now
  s3fifo.Remove(3);
  EXPECT_EQ(Pick(s3fifo, 3), Ids({2, 4, 1}));
}

}  // namespace
}  // namespace pagoda::policy
