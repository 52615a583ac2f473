// Goal: a replay counts exactly what independent simulators count. Method: the Mooncake traces and
// the conversations of agents, whose golden files two programs agree on: LRU root first and leaf
// first and LFU at five capacities to the last hit; the agents' LRU to four digits (ctest runs all
// 692 conversations under the label slow, the first 100 under fast). The traces are no part of this
// repository: set PAGODA_TRACES_DIR to a folder that has mooncake/ and agentic/, else these tests
// are skipped (self_trace_test replays a trace of our own).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "absl/strings/str_format.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/replay/replay_policies.h"
#include "storage/replay/trace_file.h"

namespace pagoda::replay {
namespace {

using Json = nlohmann::json;

bool Go(double) { return true; }

class GoldenTraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const folder = std::getenv("PAGODA_TRACES_DIR");
    if (folder == nullptr) {
      std::fprintf(stderr, "SKIPPED: PAGODA_TRACES_DIR is not set, so no trace was replayed\n");
      GTEST_SKIP() << "PAGODA_TRACES_DIR is not set";
    }
    folder_ = folder;
  }

  void ExpectMooncakeGoldens(const std::string& name) {
    const auto trace =
        ReadTrace(absl::StrFormat("%s/mooncake/%s_trace.jsonl", folder_, name), AgenticOptions());
    PAGODA_ASSERT_OK(trace);
    std::ifstream file(absl::StrFormat("%s/mooncake/%s_golden.json", folder_, name));
    const Json golden = Json::parse(file);
    ExpectSubset(trace->First(1000), golden["subsets"]["first1000"]);
    ExpectSubset(*trace, golden["subsets"]["all"]);
  }

  void ExpectAgenticRatios(const std::string& stats_name, int64_t conversation_max) {
    AgenticOptions options;
    options.conversation_max = conversation_max;
    const auto trace = ReadTrace(folder_ + "/agentic/agentic_coding_compact.jsonl.gz", options);
    PAGODA_ASSERT_OK(trace);
    std::ifstream file(folder_ + "/agentic/" + stats_name);
    std::string line;
    std::getline(file, line);
    EXPECT_NE(line.find(absl::StrFormat("reqs=%d blocks=%d unique=%d ", trace->requests().size(),
                                        trace->block_count(), trace->unique_count())),
              std::string::npos)
        << line;
    std::getline(file, line);
    ExpectRatios(*trace, line, "LRU", "lru-root-first");
    std::getline(file, line);
    ExpectRatios(*trace, line, "LRU-rev", "lru");
  }

 private:
  static void ExpectSubset(const Trace& trace, const Json& golden) {
    EXPECT_EQ(trace.requests().size(), golden["requests"]);
    EXPECT_EQ(trace.block_count(), golden["blocks"]);
    EXPECT_EQ(trace.unique_count(), golden["unique"]);
    EXPECT_EQ(trace.input_tokens(), golden["input_tokens"]);
    const auto infinite = ReplayPolicy(trace, trace.unique_count(), "lru", Go);
    PAGODA_ASSERT_OK(infinite);
    EXPECT_EQ(infinite->whole.block_hits, golden["ideal_hits"]);
    EXPECT_EQ(infinite->whole.prefix_hits, golden["ideal_hits"]);
    ExpectPolicy(trace, golden["policies"]["lru_touch_leaf_first"], "lru");
    ExpectPolicy(trace, golden["policies"]["lru_touch_root_first"], "lru-root-first");
    ExpectPolicy(trace, golden["policies"]["lfu_lru_tiebreak"], "lfu");
  }

  static void ExpectPolicy(const Trace& trace, const Json& golden, const char* policy) {
    int row_count = 0;
    for (const auto& [share, row] : golden.items()) {
      const int64_t capacity = CapacityBlocks(trace, std::stod(share));
      EXPECT_EQ(capacity, row["cap"]);
      const auto result = ReplayPolicy(trace, capacity, policy, Go);
      PAGODA_ASSERT_OK(result);
      EXPECT_EQ(result->whole.block_hits, row["block_hits"]) << policy << " at " << share;
      EXPECT_EQ(result->whole.prefix_hits, row["prefix_hits"]) << policy << " at " << share;
      ++row_count;
    }
    EXPECT_EQ(row_count, 5);
  }

  // "LRU | 1% cap=5616 0.3347/0.2839 | 2% ...": block hits, prefix hits.
  static void ExpectRatios(const Trace& trace, const std::string& line, const std::string& title,
                           const char* policy) {
    ASSERT_EQ(line.substr(0, title.size() + 1), title + " ");
    const std::regex cell(R"((\d+)% cap=(\d+) ([0-9.]+)/([0-9.]+))");
    int cell_count = 0;
    for (std::sregex_iterator it(line.begin(), line.end(), cell), end; it != end; ++it) {
      const int64_t capacity = CapacityBlocks(trace, std::stod((*it)[1]) / 100);
      EXPECT_EQ(capacity, std::stoll((*it)[2]));
      const auto result = ReplayPolicy(trace, capacity, policy, Go);
      PAGODA_ASSERT_OK(result);
      EXPECT_EQ(absl::StrFormat("%.4f", result->whole.block_hit_ratio()), (*it)[3].str())
          << policy << " at " << (*it)[1];
      EXPECT_EQ(absl::StrFormat("%.4f", result->whole.prefix_hit_ratio()), (*it)[4].str())
          << policy << " at " << (*it)[1];
      ++cell_count;
    }
    EXPECT_EQ(cell_count, 6);
  }

  std::string folder_;
};

TEST_F(GoldenTraceTest, Conversation) { ExpectMooncakeGoldens("conversation"); }

TEST_F(GoldenTraceTest, Synthetic) { ExpectMooncakeGoldens("synthetic"); }

TEST_F(GoldenTraceTest, Agents) { ExpectAgenticRatios("agentic_first100_stats.txt", 100); }

TEST_F(GoldenTraceTest, AllAgents) { ExpectAgenticRatios("agentic_all_stats.txt", INT64_MAX); }

}  // namespace
}  // namespace pagoda::replay
