// Goal: ratios are of pairs, medians not means, and the JSON has its keys. Method: rounds made by
// hand with one that is disturbed.
#include "client/cli/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;

BenchReport SampleReport() {
  BenchReport report;
  report.daemon = "in-process";
  report.socket = "unix";
  report.shape = {30, 3, 64, 64};
  report.page_count = 128;
  report.page_bytes = 1474560;
  report.message_bytes = 1 << 20;
  report.thread_count = 1;
  // The second round ran on a busy machine: both sides halved, one round spoilt on one side only.
  report.fetch = {{1.8e9, 0.9e9, 0.1e9}, {2e9, 1e9, 2e9}, {3e9, 1.5e9, 3e9}, {0.001, 0.002}};
  report.push = report.fetch;
  report.lookup = {1000, 1000, {300e-6, 320e-6, 9e-3}, {100e-6, 160e-6, 110e-6}};
  return report;
}

TEST(BenchReportTest, RatiosAreMediansOfPairs) {
  const BenchReport report = SampleReport();
  EXPECT_NEAR(report.fetch.ratio(), 0.9, 1e-12);
  EXPECT_NEAR(report.fetch.nocopy_ratio(), 0.6, 1e-12);
  EXPECT_NEAR(report.lookup.ratio(), 320.0 / 110, 1e-12);
}

TEST(BenchReportTest, Json) {
  const Json json = BenchJson(SampleReport());
  EXPECT_EQ(json["rounds"], 3);
  EXPECT_NEAR(json["fetch"]["gbps"].get<double>(), 0.9, 1e-12);
  EXPECT_NEAR(json["push"]["bare_gbps"].get<double>(), 2, 1e-12);
  EXPECT_NEAR(json["push"]["ratio"].get<double>(), 0.9, 1e-12);
  EXPECT_NEAR(json["fetch"]["page_p99_ms"].get<double>(), 2, 1e-12);
  EXPECT_EQ(json["lookup"]["keys"], 1000);
  EXPECT_NEAR(json["lookup"]["p50_us"].get<double>(), 320, 1e-9);
}

TEST(BenchReportTest, TextStatesMachineIndependentFigures) {
  const std::string text = BenchText(SampleReport());
  EXPECT_THAT(text, HasSubstr("128 pages of 1.4 MiB (30 layers, 3 heads of 64, 64 tokens)"));
  EXPECT_THAT(text, HasSubstr("lookup of 1,000 keys, 1,000 found"));
  EXPECT_THAT(text, HasSubstr("median of 3 alternating rounds"));
  EXPECT_THAT(text, HasSubstr("0.90"));
}

}  // namespace
}  // namespace pagoda::cli
