// Goal: summaries, tables and JSON carry the right figures, and an interrupted run's measures come
// back only into the same run. Method: measures made by hand; every key of the JSON left out or
// misspelt.
#include "client/cli/ablation_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

const AblationRun kRun = {.model = "abc", .settings = "4096 tokens", .raw16_bytes_per_token = 1000};
const std::vector<std::string> kTexts = {"a", "b"};

AblationMeasure Measure(const std::string& row, const std::string& text, double delta_percent) {
  lab::ReadingResult result;
  result.quality.mean_nll = 2 * (1 + delta_percent / 100);
  result.quality.nll_delta_percent = delta_percent;
  result.quality.nll_delta_standard_error_percent = 0.03;
  result.quality.mean_kl = 0.001 * delta_percent;
  result.quality.p99_kl = 0.01;
  result.quality.top1_agreement = 0.97;
  result.cost = {.bytes_per_token = text == "a" ? 280.0 : 300.0,
                 .peak_bytes = text == "a" ? 2048 : 1024,
                 .ttft_seconds = text == "a" ? 1.0 : 3.0,
                 .decode_tokens_per_second = 20,
                 .hit_tokens = 0};
  result.windows = {{132, 512, 2.0 * (1 + delta_percent / 100), 2.0},
                    {512, 1000, 1.0 * (1 + delta_percent / 100), 1.0}};
  return MakeAblationMeasure(row, text, "0123", result);
}

std::vector<AblationMeasure> Measures() {
  return {Measure("raw16", "a", 0), Measure("raw16", "b", 0), Measure("q4", "a", 1),
          Measure("q4", "b", 3),    Measure("q4 w0", "a", 2), Measure("q4 w0", "b", 2),
          Measure("half", "a", 1)};
}

std::vector<AblationSummary> Summaries() {
  return SummarizeAblation(kRun, Measures(), {"raw16", "q4", "half", "q4 w0"}, kTexts);
}

TEST(AblationReport, MeansOverTexts) {
  const std::vector<AblationSummary> rows = Summaries();
  ASSERT_EQ(rows.size(), 3u);  // half has one text only
  const AblationSummary& q4 = rows[1];
  EXPECT_EQ(q4.name, "q4");
  EXPECT_DOUBLE_EQ(q4.bytes_per_token, 290);
  EXPECT_DOUBLE_EQ(q4.ratio, 0.29);
  EXPECT_EQ(q4.peak_bytes, 2048);
  EXPECT_NEAR(q4.nll_delta_pct, 2, 1e-9);
  EXPECT_NEAR(q4.nll_delta_se, 0.03 / std::sqrt(2.0), 1e-9);
  EXPECT_NEAR(q4.ppl_delta_pct, 50 * (std::expm1(0.02) + std::expm1(0.06)), 1e-9);
  EXPECT_NEAR(q4.kl_mean, 0.002, 1e-12);
  EXPECT_EQ(q4.ttft_ms, 2000);
  EXPECT_EQ(q4.decode_tps, 20);
}

TEST(AblationReport, Tables) {
  const std::string table = AblationTable(Summaries());
  EXPECT_NE(table.find("q4             290  0.290  2.0 KiB  +2.000 +-0.021"), std::string::npos)
      << table;
  const std::string positions = PositionTable(Measures(), Summaries());
  EXPECT_NE(positions.find("positions from       0     512\n"), std::string::npos) << positions;
  EXPECT_NE(positions.find("raw16, PPL        7.39    2.72\n"), std::string::npos) << positions;
  EXPECT_NE(positions.find("q4, NLL %       +2.000  +2.000\n"), std::string::npos) << positions;
  EXPECT_EQ(positions.find("w0"), std::string::npos) << positions;
  EXPECT_EQ(AblationTable({}), "");
  EXPECT_EQ(PositionTable({}, {}), "");
}

TEST(AblationReport, TimesThatWereNotMeasuredAreDashes) {
  AblationSummary row;
  row.name = "composite";
  EXPECT_NE(AblationTable({row}).find("-         -\n"), std::string::npos) << AblationTable({row});
}

TEST(AblationReport, LongTextsHaveEightColumnsAtMost) {
  AblationMeasure measure = Measure("raw16", "a", 0);
  measure.windows = {};
  for (int64_t begin = 0; begin < 8192; begin += 512) {
    measure.windows.push_back({begin, begin + 512, 1, 1});
  }
  AblationSummary row;
  row.name = "raw16";
  const std::string table = PositionTable({measure}, {row});
  EXPECT_NE(table.find("  7168\n"), std::string::npos) << table;
  EXPECT_EQ(table.find(" 512 "), std::string::npos) << table;
}

TEST(AblationReport, PointsOfTheGridAreSeries) {
  const std::vector<QualityPoint> points = AblationPoints(Summaries(), 128);
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[1].label, "q4");
  EXPECT_EQ(points[1].series, "");
  EXPECT_EQ(points[2].label, "q4 w128");
  EXPECT_EQ(points[2].series, "q4");
  EXPECT_EQ(points[3].label, "q4 w0");
}

TEST(AblationReport, JsonComesBack) {
  const std::string json = AblationJson(kRun, Measures(), Summaries()).dump();
  const absl::StatusOr<std::vector<AblationMeasure>> back = AblationMeasuresOf(json, kRun);
  PAGODA_ASSERT_OK(back);
  EXPECT_EQ(AblationJson(kRun, *back, Summaries()).dump(), json);
  AblationRun other = kRun;
  other.settings = "2048 tokens";
  EXPECT_THAT(AblationMeasuresOf(json, other),
              StatusIs(absl::StatusCode::kFailedPrecondition, "leave out --resume"));
}

TEST(AblationReport, DamagedJsonIsRefused) {
  const Json whole = AblationJson(kRun, {Measure("q4", "a", 1)}, {});
  const auto refused = absl::StatusCode::kDataLoss;
  for (const char* text : {"", "{", "[]", "null", "3", "{\"measured\": []}"}) {
    EXPECT_THAT(AblationMeasuresOf(text, kRun), StatusIs(refused)) << text;
  }
  for (const auto& [key, value] : whole.items()) {
    if (key == "rows") continue;  // for readers alone
    Json damaged = whole;
    damaged.erase(key);
    EXPECT_THAT(AblationMeasuresOf(damaged.dump(), kRun), StatusIs(refused)) << key;
    damaged[key] = true;
    EXPECT_THAT(AblationMeasuresOf(damaged.dump(), kRun), StatusIs(refused)) << key;
  }
  for (const auto& [key, value] : whole["measured"][0].items()) {
    Json damaged = whole;
    damaged["measured"][0].erase(key);
    EXPECT_THAT(AblationMeasuresOf(damaged.dump(), kRun), StatusIs(refused)) << key;
    damaged["measured"][0][key] = Json::object();
    EXPECT_THAT(AblationMeasuresOf(damaged.dump(), kRun), StatusIs(refused)) << key;
  }
  for (const Json& window : {Json::parse("[1,2,3]"), Json::parse("[2,1,0.5,0.5]"),
                             Json::parse("[\"a\",2,0.5,0.5]"), Json::parse("[1,2,null,0.5]")}) {
    Json damaged = whole;
    damaged["measured"][0]["windows"][0] = window;
    EXPECT_THAT(AblationMeasuresOf(damaged.dump(), kRun), StatusIs(refused)) << window;
  }
}

}  // namespace
}  // namespace pagoda::cli
