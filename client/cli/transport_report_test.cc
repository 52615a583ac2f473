// Goal: figures are medians of rounds and ratios medians of pairs. Method: rows made by hand.
#include "client/cli/transport_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pagoda::cli {
namespace {

TransportReport Report() {
  TransportReport report;
  TransportRow row;
  row.path = "shm-copy";
  row.op = "fetch";
  row.bytes = 1 << 20;
  row.clients = 4;
  row.seconds = {1e-4, 2e-4, 3e-4};
  row.rates = {8e9, 2e9, 9e9};
  row.bound = "memcpy";
  row.bound_rates = {10e9, 1e9, 10e9};  // ratios .8, 2, .9
  report.rows = {row};
  return report;
}

TEST(TransportReportTest, Json) {
  const Json json = TransportJson(Report());
  const Json& row = json["rows"][0];
  EXPECT_EQ(row["path"], "shm-copy");
  EXPECT_EQ(row["op"], "fetch");
  EXPECT_EQ(row["bytes"], 1 << 20);
  EXPECT_EQ(row["clients"], 4);
  EXPECT_DOUBLE_EQ(row["p50_us"], 200);
  EXPECT_DOUBLE_EQ(row["p99_us"], 300);
  EXPECT_DOUBLE_EQ(row["p999_us"], 300);
  EXPECT_DOUBLE_EQ(row["gbps"], 8);
  EXPECT_EQ(row["bound"], "memcpy");
  EXPECT_DOUBLE_EQ(row["bound_gbps"], 10);
  EXPECT_DOUBLE_EQ(row["ratio"], .9);
}

TEST(TransportReportTest, Text) {
  const std::string text = TransportText(Report());
  EXPECT_NE(text.find("shm-copy"), std::string::npos);
  EXPECT_NE(text.find("0.90"), std::string::npos);
  EXPECT_EQ(text.find("left shared memory"), std::string::npos);
  TransportReport fallen = Report();
  fallen.staging_fallbacks = 3;
  EXPECT_NE(TransportText(fallen).find("3 pages left shared memory"), std::string::npos);
}

}  // namespace
}  // namespace pagoda::cli
