// Goal: the demo runs on the installed model, its JSON has its keys and its claims hold. Method:
// the real binary, short answers; skipped where no model is installed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "client/cli/testing/run_program.h"
#include "client/worker/model_path.h"

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

TEST(DemoTest, ItsClaimsHold) {
  const absl::StatusOr<std::string> model = ResolveModelPath();
  if (!model.ok()) GTEST_SKIP() << "SKIPPED, no model: " << model.status().message();
  const ProgramResult result = RunProgram("pagoda", {"demo", "--new-tokens", "16", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const Json json = Json::parse(result.output);
  std::vector<std::string> names;
  for (const Json& run : json["runs"]) {
    names.push_back(run["name"]);
    EXPECT_EQ(run.size(), 8u);
    EXPECT_GE(run["prompt_tokens"].get<int>(), 2500);
    EXPECT_GT(run["ttft_ms"].get<double>(), 0);
    EXPECT_GT(run["decode_tps"].get<double>(), 0);
    EXPECT_GT(run["kv_bytes_per_token"].get<double>(), 0);
    const auto agreement = run["token_agreement"].get<double>();
    EXPECT_GE(agreement, 0);
    EXPECT_LE(agreement, 1);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"cold", "warm", "warm_other", "restart", "q8", "q4"}));
  const Json& runs = json["runs"];
  EXPECT_EQ(runs[0]["hit_tokens"], 0);
  EXPECT_EQ(runs[1]["hit_tier"], "host");
  EXPECT_EQ(runs[3]["hit_tier"], "ssd");
  for (const int raw16 : {0, 1, 2, 3}) EXPECT_EQ(runs[raw16]["token_agreement"], 1) << raw16;
  for (const int run : {1, 2, 3, 4, 5}) EXPECT_GE(runs[run]["hit_tokens"].get<int>(), 2300) << run;
  // Times mean something only where this does not run beside other work.
  double load = 0;
  if (getloadavg(&load, 1) == 1 && load <= 1.5 * std::thread::hardware_concurrency()) {
    EXPECT_GT(json["ttft_ratio_warm"].get<double>(), 3);
    EXPECT_GT(json["ttft_ratio_ssd"].get<double>(), 2);
  } else {
    std::printf("load %.1f: the ratios of times are not checked\n", load);
  }
  EXPECT_GT(json["kv_ratio_q8"].get<double>(), 0.5);
  EXPECT_LE(json["kv_ratio_q8"].get<double>(), 0.55);
  EXPECT_GT(json["kv_ratio_q4"].get<double>(), 0.25);
  EXPECT_LE(json["kv_ratio_q4"].get<double>(), 0.28);
  EXPECT_EQ(json.size(), 5u);
  EXPECT_THAT(result.errors, HasSubstr("private scope"));
  // At q4 all is loaded but the window of two pages, and no run had to do without the daemon.
  EXPECT_EQ(runs[5]["hit_tokens"].get<int>(), (runs[5]["prompt_tokens"].get<int>() / 64 - 2) * 64);
  EXPECT_THAT(result.errors, Not(HasSubstr("could not use the daemon")));
}

}  // namespace
}  // namespace pagoda::cli
