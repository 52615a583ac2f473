// Goal: percentiles are measured values by nearest rank; medians as everywhere. Method: small sets
// with known answers, in any order.
#include "client/cli/percentile.h"

#include <gtest/gtest.h>

#include <numeric>

namespace pagoda::cli {
namespace {

TEST(PercentileTest, NearestRank) {
  const std::vector<double> samples = {15, 50, 20, 40, 35};  // the textbook set, shuffled
  EXPECT_EQ(Percentile(samples, 5), 15);
  EXPECT_EQ(Percentile(samples, 20), 15);
  EXPECT_EQ(Percentile(samples, 20.1), 20);
  EXPECT_EQ(Percentile(samples, 30), 20);
  EXPECT_EQ(Percentile(samples, 40), 20);
  EXPECT_EQ(Percentile(samples, 50), 35);
  EXPECT_EQ(Percentile(samples, 100), 50);
}

TEST(PercentileTest, OneSampleIsEveryPercentile) {
  const std::vector<double> samples = {7};
  EXPECT_EQ(Percentile(samples, 0.001), 7);
  EXPECT_EQ(Percentile(samples, 50), 7);
  EXPECT_EQ(Percentile(samples, 100), 7);
  EXPECT_EQ(Median(samples), 7);
}

TEST(PercentileTest, HundredSamples) {
  std::vector<double> samples(100);
  std::iota(samples.begin(), samples.end(), 1.0);
  const Latencies latencies = LatenciesOf(samples);
  EXPECT_EQ(latencies.p50, 50);
  EXPECT_EQ(latencies.p90, 90);
  EXPECT_EQ(latencies.p99, 99);
}

TEST(PercentileTest, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(Median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(Median(std::vector<double>{4, 1, 3, 2}), 2.5);
}

TEST(PercentileDeathTest, NoSamplesIsAFaultOfTheCaller) {
  EXPECT_DEATH(Median({}), "samples.empty");
  EXPECT_DEATH(Percentile(std::vector<double>{1}, 0), "percent > 0");
}

}  // namespace
}  // namespace pagoda::cli
