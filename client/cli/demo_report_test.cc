// Goal: ratios, rows, JSON keys and the verdict are right for given figures. Method: a report made
// by hand, then broken in every way that must be noticed.
#include "client/cli/demo_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;

DemoReport GoodReport() {
  DemoReport report;
  const auto add = [&report](const char* name, int64_t hit, const char* tier, double ttft) {
    report.runs.push_back({name, "acme", 2600, hit, tier, ttft, 20, 23040, 23040, 1});
  };
  add("cold", 0, "none", 8);
  add("warm", 2560, "host", 0.4);
  add("warm_other", 2560, "host", 0.5);
  add("restart", 2560, "ssd", 0.8);
  add("q8", 2560, "host", 0.4);
  add("q4", 2432, "host", 0.6);
  report.runs[4].token_agreement = 0.9375;
  report.runs[5].token_agreement = 0.25;
  report.kv_ratio_q8 = 0.545;
  report.kv_ratio_q4 = 0.278;
  return report;
}

TEST(DemoReportTest, Agreement) {
  const std::vector<uint32_t> reference = {1, 2, 3, 4};
  EXPECT_EQ(TokenAgreement(reference, reference), 1);
  EXPECT_EQ(TokenAgreement(std::vector<uint32_t>{1, 2, 9, 4}, reference), 0.75);
  EXPECT_EQ(TokenAgreement(std::vector<uint32_t>{1, 2}, reference), 0.5);
  EXPECT_EQ(TokenAgreement(std::vector<uint32_t>{1, 2, 3, 4, 5}, reference), 0.8);
  EXPECT_EQ(TokenAgreement({}, reference), 0);
  EXPECT_EQ(TokenAgreement({}, {}), 1);
}

TEST(DemoReportTest, RatiosAreColdOverTheRun) {
  EXPECT_EQ(TtftRatio(GoodReport(), "warm"), 20);
  EXPECT_EQ(TtftRatio(GoodReport(), "restart"), 10);
  EXPECT_EQ(TtftRatio(GoodReport(), "none"), 0);
  EXPECT_EQ(TtftRatio({}, "warm"), 0);
}

TEST(DemoReportTest, JsonHasExactlyThePromisedKeys) {
  const Json json = DemoJson(GoodReport());
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"runs", "ttft_ratio_warm", "ttft_ratio_ssd",
                                            "kv_ratio_q8", "kv_ratio_q4"}));
  ASSERT_EQ(json["runs"].size(), 6u);
  keys.clear();
  for (const auto& [key, value] : json["runs"][3].items()) keys.push_back(key);
  EXPECT_EQ(keys,
            (std::vector<std::string>{"name", "prompt_tokens", "hit_tokens", "hit_tier", "ttft_ms",
                                      "decode_tps", "kv_bytes_per_token", "token_agreement"}));
  EXPECT_EQ(json["runs"][3]["name"], "restart");
  EXPECT_EQ(json["runs"][3]["hit_tier"], "ssd");
  EXPECT_EQ(json["runs"][3]["ttft_ms"], 800);
  EXPECT_EQ(json["ttft_ratio_ssd"], 10);
}

TEST(DemoReportTest, RowsFitTheirTable) {
  const TextTable table = DemoTable();
  const DemoReport report = GoodReport();
  EXPECT_THAT(table.Row(DemoRow(report.runs[1])), HasSubstr("2,560  host       400 ms"));
  EXPECT_THAT(table.Row(DemoRow(report.runs[0])), HasSubstr(" 0  -   "));
  for (const DemoRun& run : report.runs) {
    EXPECT_EQ(DisplayWidth(table.Row(DemoRow(run))), DisplayWidth(table.Head()) / 2);
  }
}

TEST(DemoReportTest, ClaimsStateTheirFigures) {
  const std::string claims = DemoClaims(GoodReport());
  EXPECT_THAT(claims, HasSubstr("20.0 x lower warm (400 ms, cold 8.00 s)"));
  EXPECT_THAT(claims, HasSubstr("10.0 x lower after a restart, from SSD"));
  EXPECT_THAT(claims, HasSubstr("0.545 of raw16 at q8"));
  EXPECT_THAT(claims, HasSubstr("0.278 of raw16 at q4"));
  EXPECT_THAT(claims, HasSubstr("100 % of the tokens"));
  EXPECT_THAT(claims, HasSubstr("q8 93.8 %, q4 25.0 %"));
}

TEST(DemoReportTest, TheVerdictNamesWhatIsWrong) {
  PAGODA_EXPECT_OK(CheckDemo(GoodReport()));
  const auto expect = [](const char* text, const std::function<void(DemoReport&)>& spoil) {
    DemoReport report = GoodReport();
    spoil(report);
    EXPECT_THAT(CheckDemo(report), StatusIs(absl::StatusCode::kInternal, text));
  };
  expect("cold found 64 tokens", [](DemoReport& r) { r.runs[0].hit_tokens = 64; });
  expect("warm found 0 tokens", [](DemoReport& r) { r.runs[1].hit_tokens = 0; });
  expect("warm_other does not answer", [](DemoReport& r) { r.runs[2].token_agreement = 0.99; });
  expect("restart was served from host", [](DemoReport& r) { r.runs[3].hit_tier = "host"; });
  expect("q4 did not run", [](DemoReport& r) { r.runs.pop_back(); });
  expect("encoded to q8", [](DemoReport& r) { r.kv_ratio_q8 = 0; });
  expect("encoded to q4", [](DemoReport& r) { r.kv_ratio_q4 = 0; });
}

}  // namespace
}  // namespace pagoda::cli
