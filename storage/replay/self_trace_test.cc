// Goal: a replay counts exactly what plain simulators count, where no other trace is at hand too.
// Method: the conversations of tests/golden/replay_trace.csv, whose goldens a Python script made.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "storage/base/testing/status_matchers.h"
#include "storage/replay/replay_policies.h"
#include "storage/replay/trace_file.h"

namespace pagoda::replay {
namespace {

using Json = nlohmann::json;

bool Go(double) { return true; }

ReplayCounts CountsOf(const Json& json) {
  ReplayCounts counts;
  counts.requests = json["requests"];
  counts.blocks = json["blocks"];
  counts.block_hits = json["block_hits"];
  counts.prefix_hits = json["prefix_hits"];
  counts.tokens = json["tokens"];
  counts.token_hits = json["token_hits"];
  return counts;
}

class SelfTraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto trace = ReadTrace("tests/golden/replay_trace.csv", AgenticOptions());
    PAGODA_ASSERT_OK(trace);
    trace_ = *std::move(trace);
  }

  ReplayCounts Whole(absl::string_view policy, double share) const {
    const auto result = ReplayPolicy(trace_, CapacityBlocks(trace_, share), policy, Go);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->whole : ReplayCounts();
  }

  Trace trace_;
};

TEST_F(SelfTraceTest, Goldens) {
  std::ifstream file("tests/golden/replay_golden.json");
  const Json golden = Json::parse(file);
  EXPECT_EQ(trace_.name(), "replay_trace");
  EXPECT_EQ(trace_.block_tokens(), 64);
  EXPECT_EQ(trace_.requests().size(), golden["requests"]);
  EXPECT_EQ(trace_.unique_count(), golden["unique"]);
  ASSERT_EQ(golden["policies"].size(), 4u);
  for (const auto& [policy, rows] : golden["policies"].items()) {
    ASSERT_EQ(rows.size(), 5u);
    for (const auto& [share, row] : rows.items()) {
      SCOPED_TRACE(policy + " at " + share);
      const int64_t capacity = CapacityBlocks(trace_, std::stod(share));
      EXPECT_EQ(capacity, row["capacity_blocks"]);
      const auto result = ReplayPolicy(trace_, capacity, policy, Go);
      PAGODA_ASSERT_OK(result);
      EXPECT_TRUE(result->whole == CountsOf(row["whole"]));
      EXPECT_TRUE(result->first_half == CountsOf(row["first_half"]));
      EXPECT_EQ(result->second_half.blocks, result->whole.blocks - result->first_half.blocks);
      EXPECT_EQ(result->second_half.token_hits,
                result->whole.token_hits - result->first_half.token_hits);
    }
  }
}

TEST_F(SelfTraceTest, WhatMustHoldOfEveryPolicy) {
  for (const std::string& policy : ReplayPolicyNames()) {
    for (const double share : {0.01, 0.1, 0.5, 1.0}) {
      SCOPED_TRACE(testing::Message() << policy << " at " << share);
      const ReplayCounts counts = Whole(policy, share);
      EXPECT_EQ(counts.requests, 281);
      EXPECT_EQ(counts.blocks, trace_.block_count());
      EXPECT_EQ(counts.tokens, trace_.input_tokens());
      EXPECT_LE(counts.prefix_hits, counts.block_hits);
      EXPECT_LE(counts.block_hits, Whole("belady", share).block_hits);
      // With room for all, every block misses once.
      if (share == 1.0) {
        EXPECT_EQ(counts.prefix_hits, trace_.block_count() - trace_.unique_count());
      }
    }
  }
}

// Leaf first, a chain has no hole: whatever is there is a prefix.
TEST_F(SelfTraceTest, LeafFirstPoliciesHaveNoHoles) {
  for (const char* const policy : {"lru", "lfu-leaf-first", "attention", "hybrid", "s3fifo"}) {
    for (const double share : {0.01, 0.05, 0.25}) {
      const ReplayCounts counts = Whole(policy, share);
      EXPECT_EQ(counts.prefix_hits, counts.block_hits) << policy << " at " << share;
    }
  }
}

TEST_F(SelfTraceTest, WithoutMassesAttentionIsLru) {
  for (const double share : {0.01, 0.05, 0.25}) {
    EXPECT_TRUE(Whole("attention", share) == Whole("lru", share));
  }
}

TEST_F(SelfTraceTest, UnknownPoliciesAreToldTheKnownOnes) {
  const absl::Status status = ReplayPolicy(trace_, 10, "clock", Go).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("lru-root-first"), absl::string_view::npos);
}

TEST_F(SelfTraceTest, AReplayCanBeStopped) {
  double last = -1;
  const auto stop = [&last](double share) {
    EXPECT_GT(share, last);
    last = share;
    return share < 0.5;
  };
  for (const char* const policy : {"lru", "lru-root-first", "belady"}) {
    last = -1;
    EXPECT_EQ(ReplayPolicy(trace_, 100, policy, stop).status().code(),
              absl::StatusCode::kCancelled);
  }
}

TEST_F(SelfTraceTest, TheFirstRequestsAreATraceOfTheirOwn) {
  const Trace first = trace_.First(2);
  EXPECT_EQ(first.requests().size(), 2u);
  EXPECT_EQ(first.block_count(), 17);
  EXPECT_EQ(first.unique_count(), 14);
  EXPECT_EQ(first.input_tokens(), 415 + 579);
  EXPECT_EQ(trace_.First(1000).block_count(), trace_.block_count());
}

}  // namespace
}  // namespace pagoda::replay
