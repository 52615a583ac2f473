// Goal: the attention bench measures every combination it was asked for, and its figures agree with
// one another. Method: tiny pools; what a machine is fast at is not asserted.
#include "client/cli/attention_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;

AttentionBenchOptions Tiny() {
  AttentionBenchOptions options;
  options.head_dims = {64, 80};
  options.group_counts = {1, 3};
  options.thread_counts = {1, 2};
  options.rounds = 3;
  options.pool_bytes = 1 << 20;
  return options;
}

TEST(AttentionBenchTest, ARowForEachCombination) {
  int steps = 0;
  const auto rows = RunAttentionBench(Tiny(), [&](const std::string&) { ++steps; });
  PAGODA_ASSERT_OK(rows.status());
  EXPECT_GT(steps, 0);
  std::set<std::tuple<Precision, int32_t, int32_t, bool, int>> seen;
  for (const AttentionBenchRow& row : *rows) {
    seen.insert({row.precision, row.head_dim, row.group_count, row.shuffled, row.threads});
    EXPECT_GT(row.ns_per_token, 0);
    EXPECT_GT(row.bound_bytes_per_second, 0);
    const double bytes_per_token = row.bytes_per_second * row.ns_per_token * 1e-9;
    const double raw_bytes = 4.0 * row.head_dim;
    const double share = row.precision == Precision::kRaw16 ? 1
                         : row.precision == Precision::kQ8  ? 0.6
                                                            : 0.32;
    EXPECT_LE(bytes_per_token, raw_bytes * share * 1.05);
    EXPECT_GE(bytes_per_token, raw_bytes * share * 0.8);
    if (row.precision == Precision::kRaw16) {
      EXPECT_DOUBLE_EQ(row.speedup_vs_raw16, 1);
    }
  }
  EXPECT_EQ(seen.size(), 3u * 2 * 2 * 2 * 2);
  EXPECT_EQ(rows->size(), seen.size());
  const Json json = AttentionBenchJson(*rows, "portable");
  for (const char* const key :
       {"isa", "precision", "head_dim", "gqa", "order", "threads", "tokens", "ns_per_token", "gbps",
        "bound_gbps", "speedup_vs_raw16", "scaling"}) {
    EXPECT_TRUE(json["rows"][0].contains(key)) << key;
  }
  EXPECT_THAT(AttentionBenchText(*rows, "portable"), HasSubstr("shuffled"));
}

TEST(AttentionBenchTest, WithoutRaw16ThereIsNoSpeedup) {
  AttentionBenchOptions options = Tiny();
  options.precisions = {Precision::kQ4};
  options.head_dims = {64};
  const auto rows = RunAttentionBench(options, [](const std::string&) {});
  PAGODA_ASSERT_OK(rows.status());
  for (const AttentionBenchRow& row : *rows) EXPECT_EQ(row.speedup_vs_raw16, 0);
}

TEST(AttentionBenchTest, TooManyPagesAreRefused) {
  AttentionBenchOptions options = Tiny();
  options.pool_bytes = int64_t{1} << 50;
  EXPECT_THAT(RunAttentionBench(options, [](const std::string&) {}),
              StatusIs(absl::StatusCode::kResourceExhausted, "fewer --mib"));
}

}  // namespace
}  // namespace pagoda::cli
