// Goal: lines, summary and JSON carry the right figures, and an interrupted run's rows come back
// only into the same run. Method: rows made by hand; every key of the JSON left out or misspelt.
#include "client/cli/codec_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

const CodecRun kRun = {.model = "abc", .token_count = 4096, .window_tokens = 128};

CodecRow Row(const std::string& codec, const std::string& text, double kl) {
  QualitySummary quality;
  quality.nll_delta_percent = 0.3;
  quality.nll_delta_standard_error_percent = 0.04;
  quality.mean_kl = kl;
  quality.p99_kl = 10 * kl;
  quality.top1_agreement = 0.97;
  return MakeCodecRow(codec, 4.5, 4.25, text, quality);
}

TEST(CodecReportTest, Line) {
  EXPECT_EQ(CodecLine(Row("q4", "legal", 0.002)),
            (std::vector<std::string>{"q4", "legal", "4.500", "4.250", "+0.300 +-0.040", "2.000",
                                      "20.000", "97.00 %"}));
}

TEST(CodecReportTest, SummaryMeansAndRatios) {
  const std::vector<CodecRow> rows = {Row("q4", "a", 0.001), Row("q4", "b", 0.003),
                                      Row("q4_0+H", "a", 0.002), Row("q4_0+H", "b", 0.004),
                                      Row("e33", "a", 0.1)};  // b is missing: no line
  const std::string text = CodecSummary(rows, {"a", "b"});
  EXPECT_NE(text.find("of q4_0+H, a  of q4_0+H, b\n"), std::string::npos) << text;
  // Bits, their mean, change with the error of a mean of two, mean, worst, p99, top-1, ratios.
  EXPECT_NE(text.find("q4       4.500   4.250  4.375  +0.300 +-0.028   2.000  3.000   20.000  "
                      "97.00 %         0.500         0.750\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("e33"), std::string::npos) << text;
  EXPECT_EQ(CodecSummary({}, {"a"}), "");
  const std::string alone = CodecSummary({Row("q4", "a", 0.001)}, {"a"});
  EXPECT_EQ(alone.substr(alone.size() - 2), "-\n") << alone;
}

TEST(CodecReportTest, JsonComesBack) {
  const std::vector<CodecRow> rows = {Row("q4", "a", 0.001), Row("q8", "b", 0.00003)};
  const std::string json = CodecJson(kRun, rows).dump();
  const absl::StatusOr<std::vector<CodecRow>> back = CodecRowsOf(json, kRun);
  PAGODA_ASSERT_OK(back);
  ASSERT_EQ(back->size(), 2u);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(CodecLine((*back)[i]), CodecLine(rows[i]));
  EXPECT_EQ(CodecJson(kRun, *back).dump(), json);
  EXPECT_TRUE(CodecRowsOf(CodecJson(kRun, {}).dump(), kRun)->empty());
}

TEST(CodecReportTest, RowsOfAnotherRunAreRefused) {
  const std::string json = CodecJson(kRun, {Row("q4", "a", 0.001)}).dump();
  const auto refused = absl::StatusCode::kFailedPrecondition;
  for (CodecRun other :
       {CodecRun{"abd", 4096, 128}, CodecRun{"abc", 4095, 128}, CodecRun{"abc", 4096, 0}}) {
    EXPECT_THAT(CodecRowsOf(json, other), StatusIs(refused, "leave out --resume"));
  }
}

TEST(CodecReportTest, DamagedJsonIsRefused) {
  const Json whole = CodecJson(kRun, {Row("q4", "a", 0.001)});
  const auto refused = absl::StatusCode::kDataLoss;
  for (const char* text : {"", "{", "[]", "null", "3", "{\"rows\": []}"}) {
    EXPECT_THAT(CodecRowsOf(text, kRun), StatusIs(refused)) << text;
  }
  for (const auto& [key, value] : whole.items()) {
    Json damaged = whole;
    damaged.erase(key);
    EXPECT_THAT(CodecRowsOf(damaged.dump(), kRun), StatusIs(refused)) << key;
    damaged[key] = true;
    EXPECT_THAT(CodecRowsOf(damaged.dump(), kRun), StatusIs(refused)) << key;
  }
  for (const auto& [key, value] : whole["rows"][0].items()) {
    Json damaged = whole;
    damaged["rows"][0].erase(key);
    EXPECT_THAT(CodecRowsOf(damaged.dump(), kRun), StatusIs(refused)) << key;
    damaged["rows"][0][key] = Json::array();
    EXPECT_THAT(CodecRowsOf(damaged.dump(), kRun), StatusIs(refused)) << key;
  }
}

}  // namespace
}  // namespace pagoda::cli
