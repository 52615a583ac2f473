// Goal: what a client announces by Prefetch is in memory before it looks it up, and the metrics say
// so. Method: a daemon that was restarted, so that its pages are on SSD only; the wire client.
#include <cmath>
#include <limits>

#include "cache-server/testing/test_daemon.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

class PrefetchTest : public ::testing::Test {
 protected:
  void Begin() {
    daemon_.Start();
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    hello_ = *client_->Hello(spec_);
    PAGODA_ASSERT_OK(client_->OpenSession());
  }
  // `pages` are pushed, and after a restart on SSD only.
  void BeginWithPagesOnSsd(const std::vector<std::vector<TestPage>>& chains) {
    for (const std::vector<TestPage>& chain : chains) {
      const auto pushed = client_->Push(chain);
      PAGODA_ASSERT_OK(pushed);
      for (const v1::PushResponse& response : *pushed) {
        ASSERT_EQ(response.code(), 0) << response.message();
      }
    }
    client_.reset();
    PAGODA_ASSERT_OK(daemon_.Stop());
    Begin();
  }
  grpc::Status Announce(const std::vector<TestPage>& chain, double deadline_seconds,
                        v1::PrefetchResponse& response) {
    v1::PrefetchRequest request;
    request.set_session_id(client_->session_id());
    request.set_identity(hello_.identity());
    request.set_deadline_seconds(deadline_seconds);
    v1::KeyChain& keys = *request.add_chains();
    keys.set_scope_id(hello_.scopes(0).scope_id());
    for (const std::string& key : KeysOf(chain)) keys.add_keys(key);
    return client_->cache().Prefetch(client_->Context().get(), request, &response);
  }
  uint64_t Counter(const std::string& name) {
    const auto status = client_->Status();
    PAGODA_EXPECT_OK(status);
    const auto it = status->counters().find(name);
    return it == status->counters().end() ? 0 : it->second;
  }
  bool Eventually(const std::string& counter, uint64_t value) {
    for (int i = 0; i < 1000; ++i) {
      if (Counter(counter) == value) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
  std::unique_ptr<WireClient> client_;
  v1::HelloResponse hello_;
};

TEST_F(PrefetchTest, AnAnnouncedChainIsFoundInMemoryAndCountedAsUsedInTime) {
  Begin();
  const std::vector<TestPage> chain = MakeChain(spec_, hello_.scopes(0), {.page_count = 6});
  BeginWithPagesOnSsd({chain});
  v1::PrefetchResponse accepted;
  ASSERT_TRUE(Announce(chain, 20, accepted).ok());
  EXPECT_EQ(accepted.pages_accepted(), 6u);
  ASSERT_TRUE(Eventually("pagoda_prefetch_loaded_total{source=\"hint\"}", 6));
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, hello_.scopes(0), KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  ASSERT_EQ(lookup->pages_size(), 6);
  for (const v1::PageInfo& page : lookup->pages()) EXPECT_EQ(page.state(), v1::PAGE_STATE_READY);
  EXPECT_EQ(Counter("pagoda_prefetch_used_total{source=\"hint\"}"), 6u);
  EXPECT_EQ(Counter("pagoda_prefetch_demanded_total"), 0u);
  const std::string metrics = daemon_.server().MetricsText();
  EXPECT_NE(metrics.find("pagoda_prefetch_used_total{source=\"hint\"} 6"), std::string::npos);
  EXPECT_NE(metrics.find("pagoda_prefetch_late_total{source=\"hint\"} 0"), std::string::npos);
}

TEST_F(PrefetchTest, ALookupOfTheFirstLayerGroupBringsUpTheLaterOnes) {
  spec_.groups.push_back(spec_.groups[0]);
  Begin();
  const std::vector<TestPage> chain = MakeChain(spec_, hello_.scopes(0), {.page_count = 3});
  std::vector<TestPage> second = chain;
  for (TestPage& page : second) page.start.mutable_part()->set_group(1);
  BeginWithPagesOnSsd({chain, second});
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, hello_.scopes(0), KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  ASSERT_EQ(lookup->pages_size(), 3);
  EXPECT_TRUE(Eventually("pagoda_prefetch_loaded_total{source=\"sequence\"}", 3));
}

TEST_F(PrefetchTest, DeadlinesThatAreNoneAreRefused) {
  Begin();
  const std::vector<TestPage> chain = MakeChain(spec_, hello_.scopes(0), {.page_count = 1});
  v1::PrefetchResponse accepted;
  for (const double seconds :
       {-1.0, 3601.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const grpc::Status status = Announce(chain, seconds, accepted);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << seconds;
    EXPECT_NE(status.error_message().find("deadline_seconds"), std::string::npos);
  }
  EXPECT_TRUE(Announce(chain, 0, accepted).ok());
  EXPECT_EQ(accepted.pages_accepted(), 0u);
}

TEST_F(PrefetchTest, WithTheHintSwitchedOffNothingComes) {
  daemon_.options().prefetch.hint = false;
  Begin();
  const std::vector<TestPage> chain = MakeChain(spec_, hello_.scopes(0), {.page_count = 2});
  BeginWithPagesOnSsd({chain});
  v1::PrefetchResponse accepted;
  EXPECT_TRUE(Announce(chain, 20, accepted).ok());
  EXPECT_EQ(accepted.pages_accepted(), 0u);
  EXPECT_EQ(Counter("pagoda_prefetch_asked_total{source=\"hint\"}"), 0u);
}

}  // namespace
}  // namespace pagoda
