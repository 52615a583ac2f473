// Goal: rows and JSON carry the right figures of the right precision. Method: a report made by
// hand.
#include "client/cli/eval_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pagoda::cli {
namespace {

EvalText SampleText() {
  EvalText text{"legal", {}};
  text.report.token_count = 4095;
  text.report.rows = {
      {{2.5}, Precision::kRaw16}, {{2.501}, Precision::kQ8}, {{2.51}, Precision::kQ4}};
  text.report.rows[1].nll_delta_percent = 0.012;
  text.report.rows[1].nll_delta_standard_error_percent = 0.004;
  text.report.rows[1].mean_kl = 5e-5;
  text.report.rows[1].top1_agreement = 0.998;
  text.report.rows[2].nll_delta_percent = -0.25;
  text.report.rows[2].mean_kl = 2.1e-3;
  text.report.rows[2].top1_agreement = 0.97;
  return text;
}

TEST(EvalReportTest, Row) {
  EXPECT_EQ(EvalRow(SampleText()),
            (std::vector<std::string>{"legal", "4,096", "2.5000", "+0.012 % (+-0.004)", "5.00e-05",
                                      "99.8 %", "-0.250 % (+-0.000)", "2.10e-03", "97.0 %"}));
  const TextTable table = EvalTable();
  EXPECT_EQ(DisplayWidth(table.Row(EvalRow(SampleText()))), DisplayWidth(table.Head()) / 2);
}

TEST(EvalReportTest, Json) {
  const Json json = EvalJson({SampleText()});
  ASSERT_EQ(json["texts"].size(), 1u);
  const Json& text = json["texts"][0];
  EXPECT_EQ(text["name"], "legal");
  EXPECT_EQ(text["tokens"], 4096);
  EXPECT_EQ(text["nll_raw16"], 2.5);
  EXPECT_EQ(text["q8_delta_pct"], 0.012);
  EXPECT_EQ(text["q4_delta_pct"], -0.25);
  EXPECT_EQ(text["q8_mean_kl"], 5e-5);
  EXPECT_EQ(text["q4_mean_kl"], 2.1e-3);
  EXPECT_EQ(text["q8_delta_se_pct"], 0.004);
  EXPECT_EQ(text["q4_top1"], 0.97);
  EXPECT_TRUE(EvalJson({})["texts"].is_array());
}

}  // namespace
}  // namespace pagoda::cli
