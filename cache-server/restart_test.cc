// Goal: what was stored survives a restart; what cannot start says why in one line. Method: daemons
// started one after the other, and beside each other, on the same folder or port.
#include <sys/stat.h>

#include <fstream>

#include "cache-server/testing/test_daemon.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using absl::StatusCode;

class RestartTest : public ::testing::Test {
 protected:
  void Begin() {
    daemon_.Start();
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    hello_ = *client_->Hello(spec_);
    PAGODA_ASSERT_OK(client_->OpenSession());
  }
  void PushChain() {
    chain_ = MakeChain(spec_, hello_.scopes(0), {.page_count = 6});
    const auto pushed = client_->Push(chain_);
    PAGODA_ASSERT_OK(pushed);
    for (const v1::PushResponse& response : *pushed) ASSERT_EQ(response.code(), 0);
  }
  void End() {
    client_.reset();
    PAGODA_EXPECT_OK(daemon_.Stop());
  }

  const ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
  std::unique_ptr<WireClient> client_;
  v1::HelloResponse hello_;
  std::vector<TestPage> chain_;
};

TEST_F(RestartTest, PagesSurviveAndAreLoadedOnDemand) {
  Begin();
  PushChain();
  const std::string instance = hello_.instance_id();
  End();
  Begin();
  EXPECT_NE(hello_.instance_id(), instance);
  auto status = client_->Status();
  PAGODA_ASSERT_OK(status);
  EXPECT_EQ(status->pages(), 6u);
  EXPECT_EQ(status->tiers(0).pages(), 0u);  // metadata only: nothing was read into memory
  EXPECT_EQ(status->tiers(1).pages(), 6u);
  const v1::LookupRequest request = client_->LookupFor(spec_, hello_.scopes(0), KeysOf(chain_));
  v1::LookupRequest peek = request;
  peek.set_peek(true);
  const auto peeked = client_->Lookup(peek);
  PAGODA_ASSERT_OK(peeked);
  ASSERT_EQ(peeked->pages_size(), 6);
  EXPECT_EQ(peeked->pages(0).state(), v1::PAGE_STATE_LOADING);
  EXPECT_EQ(peeked->pages(0).tier(), v1::TIER_SSD);
  EXPECT_EQ(peeked->pages(5).base_position(), 320u);
  // The fetch itself waits for the pages.
  const auto lookup = client_->Lookup(request);
  PAGODA_ASSERT_OK(lookup);
  ASSERT_EQ(lookup->pages_size(), 6);
  const auto pages = client_->Fetch(client_->FetchFor(*lookup));
  PAGODA_ASSERT_OK(pages);
  ASSERT_EQ(pages->size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ((*pages)[i].code, 0) << (*pages)[i].message;
    EXPECT_EQ((*pages)[i].segments, chain_[i].segments);
  }
  // The models are known although nobody announced them in this life.
  v1::ListModelsResponse models;
  ASSERT_TRUE(
      client_->admin().ListModels(client_->Context().get(), v1::ListModelsRequest(), &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).model(), "test-model");
  EXPECT_EQ(models.models(0).pages(), 6u);
}

TEST_F(RestartTest, APrefetchBringsPagesUpAndALowerLadderAppliesThen) {
  Begin();
  PushChain();
  End();
  daemon_.options().ladder.models["test-model"] = Precision::kQ4;
  Begin();
  v1::PrefetchRequest prefetch;
  prefetch.set_session_id(client_->session_id());
  prefetch.set_identity(hello_.identity());
  v1::KeyChain& keys = *prefetch.add_chains();
  keys.set_scope_id(hello_.scopes(0).scope_id());
  for (const std::string& key : KeysOf(chain_)) keys.add_keys(key);
  keys.add_keys(std::string(32, 'x'));
  v1::PrefetchResponse accepted;
  ASSERT_TRUE(client_->cache().Prefetch(client_->Context().get(), prefetch, &accepted).ok());
  EXPECT_EQ(accepted.pages_accepted(), 6u);
  v1::LookupRequest peek = client_->LookupFor(spec_, hello_.scopes(0), KeysOf(chain_));
  peek.set_peek(true);
  PAGODA_EXPECT_OK(client_->LookupUntil(peek, v1::PRECISION_Q4));
}

TEST_F(RestartTest, AnotherMasterSecretMeansAnEmptyCache) {
  Begin();
  PushChain();
  End();
  const std::string path = daemon_.folder() + "/other.secret";
  std::ofstream(path) << std::string(32, 'z');
  ::chmod(path.c_str(), 0600);
  daemon_.options().master_secret_file = path;
  Begin();
  const std::vector<TestPage> now = MakeChain(spec_, hello_.scopes(0), {.page_count = 6});
  EXPECT_NE(now[0].key, chain_[0].key);
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, hello_.scopes(0), KeysOf(now)));
  PAGODA_ASSERT_OK(lookup);
  EXPECT_EQ(lookup->pages_size(), 0);
}

TEST_F(RestartTest, LeasesAndSessionsOfTheLifeBeforeAreUnknown) {
  Begin();
  PushChain();
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, hello_.scopes(0), KeysOf(chain_)));
  PAGODA_ASSERT_OK(lookup);
  v1::FetchRequest fetch = client_->FetchFor(*lookup);
  End();
  Begin();
  EXPECT_THAT(client_->Fetch(fetch), StatusIs(StatusCode::kNotFound, "session"));
  fetch.set_session_id(client_->session_id());
  EXPECT_THAT(client_->Fetch(fetch), StatusIs(StatusCode::kNotFound, "lease"));
}

TEST_F(RestartTest, WithoutSsdEverythingIsGone) {
  daemon_.options().ssd.enabled = false;
  Begin();
  PushChain();
  v1::FlushResponse flushed;
  EXPECT_EQ(
      client_->admin().Flush(client_->Context().get(), v1::FlushRequest(), &flushed).error_code(),
      grpc::StatusCode::FAILED_PRECONDITION);
  End();
  Begin();
  EXPECT_EQ(client_->Status()->pages(), 0u);
}

TEST_F(RestartTest, TwoDaemonsOnOneFolderAndOnOneAddress) {
  Begin();
  TestDaemon second;
  second.options().data_dir = daemon_.options().data_dir;
  EXPECT_THAT(second.TryStart(),
              StatusIs(StatusCode::kFailedPrecondition, "in use by another pagodad"));
  TestDaemon third;
  third.options().listen = daemon_.options().listen;
  EXPECT_THAT(third.TryStart(), StatusIs(StatusCode::kUnavailable, "in use"));
  PAGODA_EXPECT_OK(client_->Status());  // the first one is undisturbed

  TestDaemon tcp;
  tcp.options().listen = "127.0.0.1:0";
  tcp.Start();
  EXPECT_GT(tcp.server().port(), 0);
  TestDaemon clash;
  clash.options().listen = tcp.server().address();
  EXPECT_THAT(clash.TryStart(), StatusIs(StatusCode::kUnavailable, "is in use"));
  TestDaemon metrics_clash;
  metrics_clash.options().metrics_listen = tcp.server().address();
  EXPECT_THAT(metrics_clash.TryStart(), StatusIs(StatusCode::kUnavailable, "metrics_listen"));
  // After the failure the folder is free again.
  metrics_clash.options().metrics_listen = "127.0.0.1:0";
  PAGODA_EXPECT_OK(metrics_clash.TryStart());
}

TEST_F(RestartTest, FoldersAndSecretsThatCannotBeUsed) {
  TestDaemon under_a_file;
  std::ofstream(under_a_file.folder() + "/file") << "x";
  under_a_file.options().data_dir = under_a_file.folder() + "/file/data";
  EXPECT_THAT(under_a_file.TryStart(), StatusIs(StatusCode::kUnavailable, "data_dir"));
  TestDaemon read_only;
  read_only.options().data_dir = "/proc/pagoda";
  EXPECT_THAT(read_only.TryStart(), StatusIs(StatusCode::kUnavailable, "choose another"));
  TestDaemon short_secret;
  short_secret.options().master_secret_file = short_secret.folder() + "/s";
  EXPECT_THAT(short_secret.TryStart(), StatusIs(StatusCode::kNotFound, "urandom"));
  std::ofstream(short_secret.folder() + "/s") << "short";
  ::chmod((short_secret.folder() + "/s").c_str(), 0600);
  EXPECT_THAT(short_secret.TryStart(), StatusIs(StatusCode::kFailedPrecondition, "32 bytes"));
  TestDaemon not_a_socket;
  std::ofstream(not_a_socket.folder() + "/socket") << "x";
  EXPECT_THAT(not_a_socket.TryStart(), StatusIs(StatusCode::kUnavailable, "not a socket"));
}

}  // namespace
}  // namespace pagoda
