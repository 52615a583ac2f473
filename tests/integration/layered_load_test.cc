// Goal: an answer computed while pages travel layer by layer is, bit for bit, that computed after
// all of them have come, by every path and at every precision; pages that are lost on the way cost
// time only. Method: a random model, a real daemon, its client over shared memory, over gRPC, and
// through a slow relay.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "absl/time/clock.h"
#include "cache-server/testing/test_daemon.h"
#include "client/cli/slow_relay.h"
#include "client/client.h"
#include "client/worker/generator.h"
#include "client/worker/pagoda_prefix_cache.h"
#include "client/worker/testing/tiny_model.h"
#include "storage/base/clock.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(10);
const RandomLlamaOptions kModel = {
    .layer_count = 6, .head_count = 3, .kv_head_count = 1, .head_dim = 64, .context_tokens = 1024};
constexpr int kCachedTokens = 640;  // more than two of the chunks that wait for a layer at once

struct Answer {
  GenerateResult result;
  std::vector<float> logits;
  absl::Status problem;
};

class LayeredLoadTest : public ::testing::Test {
 protected:
  // Keeps what the model computed for the first kCachedTokens of the prompt, at that precision.
  void StartDaemon(Precision precision) {
    daemon_ = std::make_unique<TestDaemon>();
    daemon_->options().ladder.standard = precision;
    daemon_->Start();
    const auto client = Connect(daemon_->server().address(), "");
    prompt_ = tiny_.RandomIds(kCachedTokens + 100, 1);
    const std::vector<uint32_t> whole = prompt_;
    prompt_.resize(kCachedTokens + 20);
    PAGODA_EXPECT_OK(Generate(client.get(), precision, /*by_layer=*/false).problem);
    prompt_ = whole;
  }
  std::unique_ptr<client::Client> Connect(const std::string& target,
                                          const std::string& shm_socket) {
    client::ClientOptions options;
    options.target = target;
    options.shm_socket = shm_socket;
    options.model = MakeModelSpec(tiny_.config(), "random");
    options.page_tokens = ForwardPass::kPageTokens;
    options.reconnect_interval = absl::Milliseconds(50);
    auto client = client::Client::Create(options);
    PAGODA_CHECK(client.ok());
    PAGODA_CHECK((*client)->WaitConnected(kSoon).ok());
    return *std::move(client);
  }
  Answer Generate(client::Client* client, Precision precision, bool by_layer) {
    Answer answer;
    std::unique_ptr<PagodaPrefixCache> cache;
    if (client != nullptr) {
      cache = std::make_unique<PagodaPrefixCache>(*client, Scope{ScopeKind::kPrivate, ""});
    }
    GenerateOptions options = {.new_tokens_max = 2,
                               .precision = precision,
                               .window_tokens = 0,  // so that no age of a page shows
                               .cache = cache.get(),
                               .load_by_layer = by_layer};
    options.on_logits = [&](absl::Span<const float> logits) {
      answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
    };
    Generator generator(tiny_.pass());
    absl::StatusOr<GenerateResult> result =
        generator.Generate(prompt_, options, [](uint32_t) { return true; });
    PAGODA_CHECK(result.ok());
    answer.result = *std::move(result);
    if (cache != nullptr) answer.problem = cache->last_problem();
    return answer;
  }
  static void ExpectSame(const Answer& a, const Answer& b) {
    EXPECT_EQ(a.result.ids, b.result.ids);
    ASSERT_EQ(a.logits.size(), b.logits.size());
    EXPECT_EQ(std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)), 0);
  }
  // Once nothing of its clients is left: gRPC's own order at the end is hidden from
  // ThreadSanitizer.
  void StopDaemon() {
    {
      WireClient observer = daemon_->Client();
      const absl::Duration end = SystemClock().Monotonic() + kSoon;
      auto status = observer.Status();
      while (status.ok() && (status->sessions() > 0 || status->sequences() > 0) &&
             SystemClock().Monotonic() < end) {
        absl::SleepFor(absl::Milliseconds(10));
        status = observer.Status();
      }
    }
    PAGODA_EXPECT_OK(daemon_->Stop());
    daemon_.reset();
  }
  void TearDown() override {
    if (daemon_ != nullptr) StopDaemon();
  }

  TinyModel tiny_{kModel};
  std::unique_ptr<TestDaemon> daemon_;
  std::vector<uint32_t> prompt_;
};

TEST_F(LayeredLoadTest, AnswersAreThoseOfWholeLoads) {
  for (const Precision precision :
       {Precision::kRaw16, Precision::kQ8, Precision::kQ4, Precision::kQ3}) {
    SCOPED_TRACE(PrecisionName(precision));
    StartDaemon(precision);
    const Answer bare = Generate(nullptr, precision, false);
    for (const char* shm : {"", "none"}) {
      const auto client = Connect(daemon_->server().address(), shm);
      for (const bool by_layer : {false, true}) {
        const Answer warm = Generate(client.get(), precision, by_layer);
        ExpectSame(bare, warm);
        EXPECT_GE(warm.result.hit.tokens, kCachedTokens) << shm << by_layer;
        PAGODA_EXPECT_OK(warm.problem);
      }
    }
    StopDaemon();
  }
}

TEST_F(LayeredLoadTest, PagesOnSsdComeUpByLayer) {
  for (const Precision precision : {Precision::kRaw16, Precision::kQ4}) {
    SCOPED_TRACE(PrecisionName(precision));
    StartDaemon(precision);
    const Answer bare = Generate(nullptr, precision, false);
    auto client = Connect(daemon_->server().address(), "");
    WireClient admin = daemon_->Client();
    for (const bool by_layer : {true, false}) {
      // What is being written may come up again: until only SSD has it.
      v1::EvictRequest evict;
      evict.mutable_filter()->set_tier(v1::TIER_HOST);
      v1::FlushResponse flushed;
      v1::EvictResponse evicted;
      ASSERT_TRUE(admin.admin().Flush(admin.Context().get(), {}, &flushed).ok());
      ASSERT_TRUE(admin.admin().Evict(admin.Context().get(), evict, &evicted).ok());
      const Answer warm = Generate(client.get(), precision, by_layer);
      ExpectSame(bare, warm);
      EXPECT_GE(warm.result.hit.tokens, kCachedTokens);
      EXPECT_EQ(warm.result.hit.tier, "ssd");
      PAGODA_EXPECT_OK(warm.problem);
    }
    client.reset();
    StopDaemon();
  }
}

TEST_F(LayeredLoadTest, LayersAreComputedWhileOthersTravel) {
  StartDaemon(Precision::kRaw16);
  const Answer bare = Generate(nullptr, Precision::kRaw16, false);
  const std::string target = daemon_->folder() + "/socket";
  const auto relay = cli::SlowRelay::Start(daemon_->folder() + "/slow", target, 20e6);
  PAGODA_ASSERT_OK(relay);
  const auto client = Connect("unix:" + daemon_->folder() + "/slow", "none");
  const Answer warm = Generate(client.get(), Precision::kRaw16, /*by_layer=*/true);
  ExpectSame(bare, warm);
  EXPECT_EQ(warm.result.hit.tokens, kCachedTokens);
  EXPECT_GT(warm.result.wait_seconds, 0);
  PAGODA_EXPECT_OK(warm.problem);
}

TEST_F(LayeredLoadTest, ALineThatBreaksCostsTimeOnly) {
  StartDaemon(Precision::kRaw16);
  const Answer bare = Generate(nullptr, Precision::kRaw16, false);
  const std::string target = daemon_->folder() + "/socket";
  auto relay = cli::SlowRelay::Start(daemon_->folder() + "/slow", target, 1e6);
  PAGODA_ASSERT_OK(relay);
  const auto client = Connect("unix:" + daemon_->folder() + "/slow", "none");
  std::thread breaker([&] {
    absl::SleepFor(absl::Milliseconds(200));
    relay->reset();
  });
  const Answer warm = Generate(client.get(), Precision::kRaw16, /*by_layer=*/true);
  breaker.join();
  ExpectSame(bare, warm);
  EXPECT_EQ(warm.result.hit.tokens, 0);
}

}  // namespace
}  // namespace pagoda
