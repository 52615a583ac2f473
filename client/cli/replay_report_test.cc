// Goal: table, JSON and picture show the rows they are given. Method: two policies at two
// capacities, numbers chosen so that each can be found again.
#include "client/cli/replay_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ReplayRow Row(const std::string& trace, const std::string& policy, int64_t blocks,
              Precision precision, int64_t token_hits) {
  ReplayRow row;
  row.trace = trace;
  row.policy = policy;
  row.share = 0.02;
  row.capacity_blocks = blocks;
  row.bytes = blocks << 20;
  row.precision = precision;
  row.result.whole = {.requests = 10,
                      .blocks = 200,
                      .block_hits = 100,
                      .prefix_hits = 50,
                      .tokens = 10000,
                      .token_hits = token_hits};
  row.result.first_half = {.requests = 5, .blocks = 80, .tokens = 4000, .token_hits = 100};
  return row;
}

TEST(ReplayReportTest, TableAndJson) {
  const std::vector<ReplayRow> rows = {Row("t", "lru", 1234, Precision::kQ8, 2345)};
  const std::string table = ReplayTable(rows);
  for (const char* const text :
       {"lru", "0.02", "1,234", "1.2 GiB", "q8", "0.5000", "0.2500", "0.2345", "0.0250"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
  const Json json = ReplayRowsJson(rows);
  ASSERT_EQ(json.size(), 1u);
  const Json& row = json[0];
  EXPECT_EQ(row["trace"], "t");
  EXPECT_EQ(row["policy"], "lru");
  EXPECT_EQ(row["share"], 0.02);
  EXPECT_EQ(row["capacity_blocks"], 1234);
  EXPECT_EQ(row["bytes"], int64_t{1234} << 20);
  EXPECT_EQ(row["precision"], "q8");
  EXPECT_EQ(row["requests"], 10);
  EXPECT_EQ(row["blocks"], 200);
  EXPECT_EQ(row["block_hits"], 100);
  EXPECT_EQ(row["prefix_hits"], 50);
  EXPECT_EQ(row["token_hit_ratio"], 0.2345);
  EXPECT_EQ(row["first_half"]["token_hit_ratio"], 0.025);
  EXPECT_EQ(row["second_half"]["token_hit_ratio"], 0);
}

TEST(ReplayReportTest, APanelATraceALineAPolicyAndPrecision) {
  const std::vector<ReplayRow> rows = {Row("a", "lru", 64, Precision::kRaw16, 2000),
                                       Row("a", "s3fifo", 64, Precision::kRaw16, 3000),
                                       Row("a", "lru", 128, Precision::kRaw16, 4000),
                                       Row("b", "s3fifo", 64, Precision::kRaw16, 1000)};
  std::vector<PlotPanel> panels = ReplayPanels(rows);
  ASSERT_EQ(panels.size(), 2u);
  ASSERT_EQ(panels[0].lines.size(), 2u);
  EXPECT_EQ(panels[0].lines[0].label, "lru");
  EXPECT_EQ(panels[0].lines[0].points.size(), 2u);
  EXPECT_EQ(panels[0].lines[0].points[1].hit_rate, 0.4);
  // A policy has its colour in every panel.
  EXPECT_EQ(panels[1].lines[0].colour, panels[0].lines[1].colour);
  EXPECT_NE(panels[0].lines[0].colour, panels[0].lines[1].colour);
}

TEST(ReplayReportTest, PrecisionsAreTheStroke) {
  const std::vector<PlotPanel> panels = ReplayPanels(std::vector<ReplayRow>{
      Row("a", "lru", 64, Precision::kRaw16, 2000), Row("a", "lru", 64, Precision::kQ4, 2000)});
  ASSERT_EQ(panels.size(), 1u);
  ASSERT_EQ(panels[0].lines.size(), 2u);
  EXPECT_EQ(panels[0].lines[1].label, "lru, q4");
  EXPECT_EQ(panels[0].lines[1].colour, panels[0].lines[0].colour);
  EXPECT_NE(panels[0].lines[1].dash, panels[0].lines[0].dash);
}

TEST(ReplayReportTest, ThePictureIsWellFormed) {
  PlotPanel panel;
  panel.title = "a <trace> & more";
  panel.lines = {{"lru", 0, 0, {{1 << 20, 0.5}, {1 << 22, 0.75}}},
                 {"alone", 13, 7, {{3 << 20, 0}}}};
  const std::string svg = HitRatePlot({panel, PlotPanel()});
  EXPECT_THAT(svg, HasSubstr("a &lt;trace&gt; &amp; more"));
  EXPECT_THAT(svg, HasSubstr(">1.0 MiB<"));
  EXPECT_THAT(svg, HasSubstr(">80 %<"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  // Every element that is opened is closed.
  int open = 0;
  for (size_t at = 0; (at = svg.find('<', at)) != std::string::npos; ++at) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    if (svg[at + 1] == '/') {
      --open;
    } else if (svg[end - 1] != '/') {
      ++open;
    }
    ASSERT_GE(open, 0);
  }
  EXPECT_EQ(open, 0);
}

}  // namespace
}  // namespace pagoda::cli
