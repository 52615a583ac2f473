// Goal: the commands agree with a real daemon, and the bench measures one. Method: a daemon in this
// process, the real binary against it; figures are only checked for sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "client/cli/bench_pages.h"
#include "client/cli/self_daemon.h"
#include "client/cli/testing/run_program.h"
#include "client/client.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr kernels::PageShape kShape{2, 2, 32, 64};
constexpr int64_t kPages = 5;

class LiveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SelfDaemonOptions options;
    options.host_bytes = int64_t{64} << 20;
    options.ssd = true;
    auto daemon = SelfDaemon::Start(options);
    PAGODA_ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    client::ClientOptions client_options;
    client_options.target = daemon_->address();
    client_options.model = BenchModel(kShape, "live");
    auto client = client::Client::Create(client_options);
    PAGODA_ASSERT_OK(client);
    client_ = *std::move(client);
    PAGODA_ASSERT_OK(client_->WaitConnected(absl::Seconds(10)));
    PushPages();
  }

  void PushPages() {
    const BenchPages pages(kShape, kPages);
    const auto scope = client_->FindScope({ScopeKind::kPrivate, ""});
    ASSERT_TRUE(scope.has_value());
    const BenchPages::Chain chain = pages.MakeChain(scope->root, 1);
    auto pusher = client_->OpenPusher({}, nullptr);
    PAGODA_ASSERT_OK(pusher);
    for (int64_t i = 0; i < kPages; ++i) {
      PAGODA_ASSERT_OK((*pusher)->Push(pages.Item(chain, *scope, i)));
    }
    PAGODA_ASSERT_OK((*pusher)->Flush(absl::Seconds(10)));
    // The last answer is counted a moment after Flush() returns.
    for (int i = 0; i < 1000 && client_->stats().pushed_pages < kPages; ++i) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    ASSERT_EQ(client_->stats().pushed_pages, kPages);
  }

  Json RunJson(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--daemon", daemon_->address(), "--json", "-"});
    const ProgramResult result = RunProgram("pagoda", arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments[0] << ": " << result.errors;
    return Json::parse(result.output, nullptr, false);
  }

  std::unique_ptr<SelfDaemon> daemon_;
  std::unique_ptr<client::Client> client_;
};

TEST_F(LiveTest, StatusModelsAndPagesShowWhatWasPushed) {
  const Json status = RunJson({"status"});
  EXPECT_EQ(status["state"], "serving");
  EXPECT_EQ(status["pages"], kPages);
  EXPECT_EQ(status["sessions"], 1);
  EXPECT_FALSE(status["counters"].empty());
  bool host = false;
  for (const Json& tier : status["tiers"]) {
    if (tier["tier"] != "host") continue;
    host = true;
    EXPECT_EQ(tier["pages"], kPages);
    EXPECT_EQ(tier["pages_by_precision"]["raw16"], kPages);
    EXPECT_GT(tier["used_bytes"].get<int64_t>(), kPages * RawPayloadBytes(kShape));
  }
  EXPECT_TRUE(host);

  const Json models = RunJson({"models"})["models"];
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0]["model"], "bench-2x2x32");
  EXPECT_EQ(models[0]["pages"], kPages);

  const Json pages = RunJson({"pages", "--tier", "host"})["pages"];
  ASSERT_EQ(pages.size(), static_cast<size_t>(kPages));
  EXPECT_EQ(RunJson({"pages", "--key", pages[0]["key"]})["pages"].size(), 1u);
  EXPECT_EQ(RunJson({"pages", "--precision", "q4"})["pages"].size(), 0u);
  EXPECT_EQ(RunJson({"pages", "--limit", "2"})["pages"].size(), 2u);
}

TEST_F(LiveTest, PinnedPagesStayWhenEverythingIsEvicted) {
  const Json pages = RunJson({"pages"})["pages"];
  // The last page of the chain, so that no other one depends on it.
  std::string last;
  for (const Json& page : pages) {
    if (page["base_position"] == (kPages - 1) * 64) last = page["key"];
  }
  EXPECT_EQ(RunJson({"pin", "--key", last})["pages"], 1);
  const Json evicted = RunJson({"evict", "--all"});
  EXPECT_GE(evicted["pages_kept"].get<int>(), 1);
  EXPECT_EQ(evicted["pages"].get<int>() + evicted["pages_kept"].get<int>(), kPages);
  EXPECT_EQ(RunJson({"unpin", "--key", last})["pages"], 1);
  RunJson({"evict", "--all"});
  EXPECT_EQ(RunJson({"pages"})["pages"].size(), 0u);
}

TEST_F(LiveTest, LadderEncodesAndFlushPersists) {
  EXPECT_GE(RunJson({"ladder", "bench-2x2x32", "q4"})["pages_queued"].get<int>(), 0);
  size_t encoded = 0;
  for (int i = 0; i < 200 && encoded != kPages; ++i) {
    encoded = RunJson({"pages", "--precision", "q4"})["pages"].size();
  }
  EXPECT_EQ(encoded, static_cast<size_t>(kPages));
  EXPECT_EQ(RunJson({"flush", "--timeout", "20"})["pages_unpersisted"], 0);
  EXPECT_EQ(RunJson({"pages", "--tier", "ssd"})["pages"].size(), static_cast<size_t>(kPages));
}

TEST_F(LiveTest, TopAndDrain) {
  EXPECT_EQ(RunJson({"top", "--once"})["pages"], kPages);
  client_.reset();
  EXPECT_EQ(RunJson({"drain", "--timeout", "20"})["sessions_left"], 0);
  EXPECT_EQ(RunJson({"status"})["state"], "draining");
}

TEST_F(LiveTest, BenchAgainstThisDaemon) {
  const Json json = RunJson({"bench", "--layers", "2", "--heads", "2", "--dim", "32", "--pages",
                             "16", "--rounds", "2", "--keys", "64"});
  EXPECT_EQ(json["daemon"], daemon_->address());
  EXPECT_EQ(json["socket"], "unix");
  EXPECT_EQ(json["pages"], 16);
  EXPECT_EQ(json["lookup"]["found"], 64);
  for (const char* direction : {"fetch", "push"}) {
    EXPECT_GT(json[direction]["gbps"].get<double>(), 0) << direction;
    EXPECT_GT(json[direction]["ratio"].get<double>(), 0) << direction;
  }
  EXPECT_EQ(RunJson({"pages"})["pages"].size(), static_cast<size_t>(kPages));  // its own are gone
}

TEST(SelfBenchTest, BringsItsOwnDaemonOnEitherSocket) {
  for (const char* socket : {"unix", "tcp"}) {
    const ProgramResult result = RunProgram(
        "pagoda", {"bench", "--self", "--socket", socket, "--pages", "16", "--layers", "2",
                   "--rounds", "1", "--threads", "2", "--keys", "64", "--json", "-"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const Json json = Json::parse(result.output, nullptr, false);
    EXPECT_EQ(json["socket"], socket);
    EXPECT_EQ(json["daemon"], "in-process");
    EXPECT_EQ(json["threads"], 2);
    EXPECT_THAT(result.errors, HasSubstr("bare gRPC"));
  }
}

}  // namespace
}  // namespace pagoda::cli
