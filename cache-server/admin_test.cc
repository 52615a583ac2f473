// Goal: operators see what is there and can pin, evict, drain and flush it; metrics are sound.
// Method: an in-process daemon; promtool reads the metrics where it is installed.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "cache-server/metric_names.h"
#include "cache-server/testing/test_daemon.h"
#include "proto/wire.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

class AdminTest : public ::testing::Test {
 protected:
  void Begin() {
    daemon_.Start();
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    scope_ = client_->Hello(spec_)->scopes(0);
    PAGODA_ASSERT_OK(client_->OpenSession());
    chain_ = MakeChain(spec_, scope_);
    PAGODA_ASSERT_OK(client_->Push(chain_));
  }
  std::vector<v1::PageRecord> List(const v1::PageFilter& filter, uint32_t limit = 0) {
    v1::ListPagesRequest request;
    *request.mutable_filter() = filter;
    request.set_limit(limit);
    const auto context = client_->Context();
    const auto stream = client_->admin().ListPages(context.get(), request);
    std::vector<v1::PageRecord> records;
    v1::ListPagesResponse batch;
    while (stream->Read(&batch)) {
      records.insert(records.end(), batch.pages().begin(), batch.pages().end());
    }
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return records;
  }
  int PeekCount() {
    v1::LookupRequest peek = client_->LookupFor(spec_, scope_, KeysOf(chain_));
    peek.set_peek(true);
    return client_->Lookup(peek)->pages_size();
  }

  const ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
  std::unique_ptr<WireClient> client_;
  v1::ScopeInfo scope_;
  std::vector<TestPage> chain_;
};

TEST_F(AdminTest, StatusAndLists) {
  Begin();
  const auto status = client_->Status();
  PAGODA_ASSERT_OK(status);
  EXPECT_EQ(status->state(), "serving");
  EXPECT_EQ(status->version(), "0.1.0");
  EXPECT_EQ(status->listen(), daemon_.options().listen);
  EXPECT_EQ(status->pages(), 4u);
  EXPECT_EQ(status->sessions(), 1u);
  EXPECT_EQ(status->tiers(0).pages_by_precision().at("raw16"), 4u);
  EXPECT_EQ(status->counters().at("pagoda_put_pages_total{result=\"stored\"}"), 4u);
  EXPECT_EQ(List({}).size(), 4u);
  EXPECT_EQ(List({}, 3).size(), 3u);
  v1::PageFilter filter;
  filter.set_key(chain_[2].start.key());
  const std::vector<v1::PageRecord> one = List(filter);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].base_position(), 128u);
  EXPECT_EQ(one[0].scope_kind(), v1::SCOPE_KIND_PRIVATE);
  EXPECT_EQ(one[0].part().head_count(), 2u);
  filter.set_precision(v1::PRECISION_Q4);
  EXPECT_TRUE(List(filter).empty());
  v1::ListPagesRequest absurd;
  absurd.set_limit(4000000000u);
  const auto context = client_->Context();
  const auto stream = client_->admin().ListPages(context.get(), absurd);
  v1::ListPagesResponse batch;
  EXPECT_FALSE(stream->Read(&batch));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminTest, PinEvictAndUnpin) {
  Begin();
  v1::PinRequest pin;
  v1::PinResponse pinned;
  pin.mutable_filter()->set_key(std::string(32, 'x'));
  EXPECT_EQ(client_->admin().Pin(client_->Context().get(), pin, &pinned).error_code(),
            grpc::StatusCode::NOT_FOUND);
  pin.mutable_filter()->set_key("short");
  EXPECT_EQ(client_->admin().Pin(client_->Context().get(), pin, &pinned).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  pin.mutable_filter()->set_key(chain_[1].start.key());
  ASSERT_TRUE(client_->admin().Pin(client_->Context().get(), pin, &pinned).ok());
  EXPECT_EQ(pinned.pages(), 1u);
  EXPECT_EQ(client_->Status()->pinned_pages(), 1u);
  v1::EvictResponse evicted;
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), v1::EvictRequest(), &evicted).ok());
  EXPECT_EQ(evicted.pages(), 2u);  // the two after the pinned one
  EXPECT_EQ(evicted.pages_kept(), 2u);
  EXPECT_GT(evicted.bytes(), 0u);
  EXPECT_EQ(PeekCount(), 2);
  ASSERT_TRUE(client_->admin().Unpin(client_->Context().get(), pin, &pinned).ok());
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), v1::EvictRequest(), &evicted).ok());
  EXPECT_EQ(evicted.pages(), 2u);
  EXPECT_EQ(PeekCount(), 0);
  EXPECT_EQ(client_->Status()->pages(), 0u);
}

TEST_F(AdminTest, LeasedPagesAreNotEvictedAndOneTierCanBeEmptied) {
  Begin();
  v1::FlushResponse flushed;
  ASSERT_TRUE(client_->admin().Flush(client_->Context().get(), v1::FlushRequest(), &flushed).ok());
  EXPECT_EQ(flushed.pages_unpersisted(), 0u);
  EXPECT_EQ(client_->Status()->tiers(1).pages(), 4u);
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain_)));
  PAGODA_ASSERT_OK(lookup);
  v1::EvictRequest host;
  host.mutable_filter()->set_tier(v1::TIER_HOST);
  v1::EvictResponse evicted;
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), host, &evicted).ok());
  EXPECT_EQ(evicted.pages(), 0u);
  EXPECT_EQ(evicted.pages_kept(), 4u);
  v1::ReleaseRequest release;
  release.set_session_id(client_->session_id());
  release.add_lease_ids(lookup->lease_id());
  v1::ReleaseResponse released;
  ASSERT_TRUE(client_->cache().Release(client_->Context().get(), release, &released).ok());
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), host, &evicted).ok());
  EXPECT_EQ(evicted.pages(), 4u);
  const auto status = client_->Status();
  EXPECT_EQ(status->tiers(0).pages(), 0u);
  EXPECT_EQ(status->tiers(1).pages(), 4u);
  EXPECT_EQ(PeekCount(), 4);
}

TEST_F(AdminTest, LaddersAreSetPerModel) {
  Begin();
  v1::SetLadderRequest request;
  v1::SetLadderResponse response;
  const auto set = [&] {
    return client_->admin().SetLadder(client_->Context().get(), request, &response).error_code();
  };
  EXPECT_EQ(set(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_ladder(v1::PRECISION_OPAQUE);
  EXPECT_EQ(set(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_ladder(v1::PRECISION_Q8);
  request.set_identity(std::string(32, 'i'));
  EXPECT_EQ(set(), grpc::StatusCode::NOT_FOUND);
  request.set_identity(std::string(IdentityOf(spec_).view()));
  EXPECT_EQ(set(), grpc::StatusCode::OK);
  v1::LookupRequest peek = client_->LookupFor(spec_, scope_, KeysOf(chain_));
  peek.set_peek(true);
  PAGODA_EXPECT_OK(client_->LookupUntil(peek, v1::PRECISION_Q8));
  v1::ListModelsResponse models;
  ASSERT_TRUE(
      client_->admin().ListModels(client_->Context().get(), v1::ListModelsRequest(), &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).ladder(), v1::PRECISION_Q8);
  EXPECT_EQ(models.models(0).page_tokens(), 64u);
}

TEST_F(AdminTest, PoliciesChangeAllOrNothingAndAreTold) {
  Begin();
  v1::SetPolicyResponse response;
  const auto set = [&](const v1::SetPolicyRequest& request) {
    return client_->admin().SetPolicy(client_->Context().get(), request, &response);
  };
  ASSERT_TRUE(set({}).ok());  // only asks
  EXPECT_EQ(response.policy().host().eviction(), "lru");
  EXPECT_EQ(response.policy().ssd_admission(), "always");
  EXPECT_EQ(response.policy().host().watermarks().start(), 0.85);
  ASSERT_GT(response.evictions_size(), 0);
  EXPECT_EQ(response.evictions(0), "lru");

  v1::SetPolicyRequest request;
  v1::PolicySet& policy = *request.mutable_policy();
  policy.set_ssd_admission("second_touch");
  policy.mutable_hot_pin()->set_uses(5);
  policy.mutable_hot_pin()->set_share(0.1);
  v1::ScopeFloor& floor = *policy.add_floors();
  floor.set_scope("private:acme");
  floor.set_host_bytes(4096);
  policy.mutable_ssd()->mutable_watermarks()->set_start(0.5);  // stop and hard are 0
  EXPECT_EQ(set(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_TRUE(set({}).ok());
  EXPECT_EQ(response.policy().ssd_admission(), "always");  // nothing of it was applied

  policy.clear_ssd();
  ASSERT_TRUE(set(request).ok());
  EXPECT_EQ(response.policy().ssd_admission(), "second_touch");
  EXPECT_EQ(response.policy().hot_pin().uses(), 5u);
  ASSERT_EQ(response.policy().floors_size(), 1);
  EXPECT_EQ(response.policy().floors(0).host_bytes(), 4096u);
  EXPECT_EQ(response.policy().floors(0).scope_id(),
            std::string(ScopeIdOf({ScopeKind::kPrivate, "acme"}).view()));
  policy.mutable_host()->set_eviction("best");
  EXPECT_EQ(set(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  policy.mutable_host()->clear_eviction();
  floor.set_scope("acme");
  EXPECT_EQ(set(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminTest, DrainTellsSessionsPersistsAndKeepsAnswering) {
  Begin();
  EXPECT_EQ(client_->Health(""), "serving");
  EXPECT_EQ(client_->Health(kHealthServiceName), "serving");
  EXPECT_NE(client_->Health("no.such.Service"), "serving");
  v1::DrainRequest request;
  request.set_timeout_seconds(0.3);
  v1::DrainResponse drained;
  ASSERT_TRUE(client_->admin().Drain(client_->Context().get(), request, &drained).ok());
  EXPECT_EQ(drained.sessions_left(), 1u);
  EXPECT_EQ(drained.pages_unpersisted(), 0u);
  v1::SessionResponse event;
  ASSERT_TRUE(client_->Receive(&event));
  EXPECT_TRUE(event.draining());
  EXPECT_EQ(client_->Status()->state(), "draining");
  EXPECT_EQ(client_->Health(""), "not serving");
  EXPECT_EQ(client_->Health(kHealthServiceName), "not serving");
  EXPECT_EQ(PeekCount(), 4);
  WireClient late(daemon_.server().address());
  EXPECT_THAT(late.OpenSession(), StatusIs(absl::StatusCode::kUnavailable, "draining"));
  request.set_timeout_seconds(-1);
  EXPECT_EQ(client_->admin().Drain(client_->Context().get(), request, &drained).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminTest, ReportsFeedTheMetrics) {
  Begin();
  v1::ReportRequest report;
  report.set_session_id(client_->session_id());
  report.set_identity(std::string(IdentityOf(spec_).view()));
  for (const std::string& key : KeysOf(chain_)) report.add_accessed_keys(key);
  report.set_ttft_seconds(0.25);
  report.set_prompt_tokens(100);
  report.set_hit_tokens(95);
  report.set_decoded_tokens(7);
  v1::ReportResponse response;
  ASSERT_TRUE(client_->cache().Report(client_->Context().get(), report, &response).ok());
  report.set_accessed_keys(0, "short");
  EXPECT_EQ(client_->cache().Report(client_->Context().get(), report, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  const auto status = client_->Status();
  EXPECT_EQ(status->counters().at("pagoda_decode_tokens_total"), 14u);
  EXPECT_NE(daemon_.server().MetricsText().find("pagoda_ttft_seconds_count{cache=\"warm\"} 2"),
            std::string::npos);
}

TEST_F(AdminTest, EveryMetricIsDescribedOnceAndPromtoolAgrees) {
  Begin();
  PAGODA_ASSERT_OK(client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain_))));
  const std::string text = daemon_.server().MetricsText();
  std::istringstream lines(text);
  std::set<std::string> seen;
  size_t series = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) {
      EXPECT_TRUE(seen.insert(line.substr(7, line.find(' ', 7) - 7)).second) << line;
    } else if (line[0] != '#') {
      ++series;
    }
  }
  EXPECT_LT(series, 3000u);
  std::set<std::string> listed;
  std::ifstream readme_file("cache-server/README.md");
  std::stringstream readme;
  readme << readme_file.rdbuf();
  for (const MetricInfo& metric : kAllMetrics) {
    EXPECT_TRUE(listed.insert(metric.name).second) << metric.name;
    EXPECT_NE(readme.str().find(metric.name), std::string::npos)
        << metric.name << " is not in README.md";
  }
  for (const std::string& name : seen) EXPECT_TRUE(listed.contains(name)) << name;

  if (std::system("command -v promtool > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed (Debian package prometheus): metrics not linted";
  }
  const std::string path = daemon_.folder() + "/metrics.txt";
  std::ofstream(path) << text;
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0);
}

}  // namespace
}  // namespace pagoda
