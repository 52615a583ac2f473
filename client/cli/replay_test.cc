// Goal: pagoda replay reads traces, obeys its flags and shows rows whose numbers the golden file
// knows. Method: the real binary on the trace of tests/golden.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "client/cli/temp_folder.h"
#include "client/cli/testing/run_program.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr char kTrace[] = "tests/golden/replay_trace.csv";

ProgramResult Replay(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "replay");
  return RunProgram("pagoda", arguments);
}

TEST(ReplayTest, RowsAreThoseOfTheGoldenFile) {
  const ProgramResult result =
      Replay({kTrace, "--policy", "lru,lfu,belady", "--share", "0.05,0.25", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const Json json = Json::parse(result.output);
  std::ifstream file("tests/golden/replay_golden.json");
  const Json golden = Json::parse(file);
  ASSERT_EQ(json["rows"].size(), 6u);
  for (const Json& row : json["rows"]) {
    const std::string policy = row["policy"];
    const Json& expected = golden["policies"][policy][row["share"] == 0.05 ? "0.05" : "0.25"];
    EXPECT_EQ(row["trace"], "replay_trace");
    EXPECT_EQ(row["capacity_blocks"], expected["capacity_blocks"]);
    EXPECT_EQ(row["precision"], "raw16");
    EXPECT_GT(row["bytes"], 0);
    for (const char* const key : {"requests", "blocks", "block_hits", "prefix_hits"}) {
      EXPECT_EQ(row[key], expected["whole"][key]) << policy << " " << key;
      EXPECT_EQ(row["first_half"][key], expected["first_half"][key]) << policy << " " << key;
    }
    EXPECT_EQ(row["token_hit_ratio"], expected["whole"]["token_hits"].get<double>() /
                                          expected["whole"]["tokens"].get<double>());
    EXPECT_TRUE(row["second_half"].contains("token_hit_ratio"));
  }
  EXPECT_EQ(json["note"], "");
}

TEST(ReplayTest, TheSameBytesHoldMoreInFewerBits) {
  const ProgramResult result = Replay({kTrace, "--raw16-tokens", "8k", "--precision", "raw16,q8,q4",
                                       "--model", "smollm2-135m", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const Json json = Json::parse(result.output);
  ASSERT_EQ(json["rows"].size(), 3u);
  const Json& rows = json["rows"];
  EXPECT_EQ(rows[0]["bytes"], 8000 * 30 * 3 * 64 * 4);
  EXPECT_EQ(rows[2]["bytes"], rows[0]["bytes"]);
  // 8000 tokens are 125 blocks of 64; headers and padding take a few.
  EXPECT_LT(rows[0]["capacity_blocks"], 125);
  EXPECT_GT(rows[0]["capacity_blocks"], 110);
  const double raw16 = rows[0]["capacity_blocks"];
  EXPECT_GT(rows[1]["capacity_blocks"], 1.6 * raw16);
  EXPECT_GT(rows[2]["capacity_blocks"], 3 * raw16);
  EXPECT_GT(rows[2]["token_hit_ratio"], rows[0]["token_hit_ratio"]);
  for (const Json& row : rows) {
    const std::string precision = row["precision"];
    const int64_t page_bytes = json["page_bytes"][precision];
    EXPECT_EQ(row["capacity_blocks"], row["bytes"].get<int64_t>() / page_bytes);
  }
}

TEST(ReplayTest, AllPoliciesAndThePicture) {
  const auto folder = TempFolder::Make("replay_test_");
  PAGODA_ASSERT_OK(folder);
  const std::string plot = folder->File("hits.svg");
  const ProgramResult result =
      Replay({kTrace, "--policy", "all", "--share", "0.1", "--requests", "100", "--plot", plot});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  for (const char* const policy : {"lru ", "lru-root-first", "lfu ", "lfu-leaf-first", "attention",
                                   "hybrid", "s3fifo", "belady"}) {
    EXPECT_THAT(result.output, HasSubstr(policy));
  }
  EXPECT_THAT(result.output, HasSubstr("attention is lru here, and hybrid drops that term"));
  std::ifstream file(plot);
  std::string first_line;
  std::getline(file, first_line);
  EXPECT_THAT(first_line, HasSubstr("<svg"));
}

// Without eviction the daemon and the simulation agree exactly; with it, its marks and chunks make
// a small difference.
TEST(ReplayTest, ALiveDaemonHitsWhatTheSimulationSays) {
  const auto live = [](const char* share, const char* precision) {
    const ProgramResult result = Replay({kTrace, "--live", "--share", share, "--model", "4:2:64",
                                         "--precision", precision, "--json", "-"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return Json::parse(result.output);
  };
  for (const char* const precision : {"raw16", "q4"}) {
    const Json whole = live("1", precision);
    EXPECT_GT(whole["prefix_hits"], 0);
    EXPECT_EQ(whole["prefix_hits"], whole["simulated_prefix_hits"]) << precision;
    EXPECT_EQ(whole["fetched_pages"], whole["prefix_hits"]);
    EXPECT_EQ(whole["push_failures"], 0);
    EXPECT_EQ(whole["daemon"], "in-process");
  }
  const Json tenth = live("0.1", "raw16");
  const double simulated = tenth["simulated_prefix_hits"];
  EXPECT_NEAR(tenth["prefix_hits"].get<double>(), simulated, 0.15 * simulated);
  EXPECT_LT(tenth["prefix_hits"], live("1", "raw16")["prefix_hits"]);
}

TEST(ReplayTest, MistakesNameCauseAndRemedy) {
  const auto expect = [](const ProgramResult& result, int exit_code, const std::string& cause,
                         const std::string& remedy) {
    EXPECT_EQ(result.exit_code, exit_code) << result.errors;
    EXPECT_THAT(result.errors, AllOf(HasSubstr(cause), HasSubstr(remedy)));
    EXPECT_EQ(result.output, "");
  };
  expect(Replay({}), 2, "TRACE", "--help");
  expect(Replay({kTrace, "--policy", "clock"}), 2, "unknown policy \"clock\"", "lru-root-first");
  expect(Replay({kTrace, "--model", "gpt"}), 2, "unknown model \"gpt\"", "LAYERS:KVHEADS:HEADDIM");
  expect(Replay({kTrace, "--bytes", "many"}), 2, "\"many\" is no amount", "64GiB");
  expect(Replay({kTrace, "--share", "1.5"}), 2, "--share", "--help");
  expect(Replay({kTrace, "--share", "0.5", "--bytes", "1G"}), 2, "--bytes", "--help");
  expect(Replay({kTrace, "--precision", "q7"}), 2, "q7", "--help");
  expect(Replay({kTrace, "--json", "-", "--plot", "-"}), 2, "both stdout", "--help");
  expect(Replay({kTrace, "--bytes", "1000"}), 1, "1000 bytes hold no block", "more bytes");
  expect(Replay({"tests/golden/absent.jsonl"}), 1, "absent.jsonl", "No such file");
  expect(Replay({"tests/golden/README.md"}), 1, "README.md, line 1", "# block_tokens=64");
  expect(Replay({kTrace, "--live"}), 2, "needs a capacity", "--share S");
  expect(Replay({kTrace, "--live", "--share", "0.1,0.2"}), 2, "one capacity", "--help");
  expect(Replay({kTrace, "--live", "--share", "1", "--policy", "lru,lfu"}), 2, "one --policy",
         "--help");
  expect(Replay({kTrace, "--live", "--share", "1", "--policy", "belady"}), 2, "no policy belady",
         "s3fifo");
  expect(Replay({kTrace, "--live", "--share", "1", "--model", "200:64:256"}), 1,
         "of memory are free", "smaller --model");
  expect(Replay({kTrace, "--live", "--daemon", "127.0.0.1:1", "--timeout", "1"}), 1, "127.0.0.1:1",
         "pagodad");
  expect(Replay({kTrace, "--plot", "/nowhere/a.svg"}), 1, "/nowhere/a.svg", "No such file");
}

TEST(ReplayTest, HelpTeaches) {
  const ProgramResult result = Replay({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("Example: pagoda replay"), HasSubstr("JSON keys:"),
                                   HasSubstr("--raw16-tokens 3M --precision raw16,q8,q4")));
}

}  // namespace
}  // namespace pagoda::cli
