// Goal: times come back within a step, figures add up, and a line says them. Method: known times.
#include "client/path_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/client.h"

namespace pagoda::client {
namespace {

TEST(TimeHistogramTest, QuantilesAreWithinAStep) {
  TimeHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), absl::ZeroDuration());
  for (int i = 1; i <= 100; ++i) histogram.Add(absl::Milliseconds(i));
  for (const int percent : {1, 50, 99, 100}) {
    const absl::Duration exact = absl::Milliseconds(percent);
    EXPECT_GE(histogram.Quantile(percent / 100.0), exact * 0.999);
    EXPECT_LE(histogram.Quantile(percent / 100.0), exact * 1.21);
  }
  histogram.Add(absl::Hours(1000));  // beyond the last step, and below the first
  histogram.Add(absl::ZeroDuration());
  EXPECT_GT(histogram.Quantile(1), absl::Hours(1));
  EXPECT_EQ(histogram.Quantile(0), absl::Microseconds(1));
}

TEST(PathCounterTest, FiguresAddUpAndReadWell) {
  PathCounter counter;
  EXPECT_FALSE(counter.Stats().any());
  counter.AddFetch(4, 2'000'000, absl::Milliseconds(2));
  counter.AddFetch(0, 0, absl::Milliseconds(2));
  counter.AddPush(500'000, absl::Milliseconds(1));
  counter.AddFallback();
  ClientStats stats;
  EXPECT_EQ(stats.PathLines(), "");
  stats.shm = counter.Stats();
  EXPECT_EQ(stats.shm.fetches, 2);
  EXPECT_EQ(stats.shm.fetched_bytes, 2'000'000);
  EXPECT_THAT(
      stats.PathLines(),
      testing::MatchesRegex("shm: fetched 4 pages, 2.0 MB in 2 fetches \\(p50 .* ms, p99 .* ms\\); "
                            "pushed 1 pages, 0.5 MB \\(p50 .*\\); 1 fallbacks\n"));
}

}  // namespace
}  // namespace pagoda::client
