// Goal: what a client holds lives exactly as long as it does: leases, sequences, half-pushed pages.
// Method: an in-process daemon on a fake clock; clients that end well, break, or fall silent.
#include "cache-server/testing/test_daemon.h"
#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using absl::StatusCode;

constexpr char kSequence[] = "sequence-id-0001";

class SessionsTest : public ::testing::Test {
 protected:
  void Begin() {
    daemon_.Start(clock_);
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    watcher_ = std::make_unique<WireClient>(daemon_.server().address());
    scope_ = client_->Hello(spec_)->scopes(0);
    chain_ = MakeChain(spec_, scope_);
    PAGODA_ASSERT_OK(client_->OpenSession());
  }
  // Waits until the daemon's state is as wanted: streams end a moment after the client's side.
  void Await(const std::function<bool(const v1::StatusResponse&)>& wanted) {
    v1::StatusResponse last;
    for (int i = 0; i < 500; ++i) {
      last = *watcher_->Status();
      if (wanted(last)) return;
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << last.ShortDebugString();
  }
  void BeginPage() {
    push_context_ = client_->Context();
    push_ = client_->cache().Push(push_context_.get());
    v1::PushRequest begin;
    begin.set_session_id(client_->session_id());
    *begin.mutable_page() = MakeChain(spec_, scope_, {.seed = 9})[0].start;
    ASSERT_TRUE(push_->Write(begin));
    Await([](const auto& s) { return s.staged_pages() == 1; });
  }
  void HoldEverything() {
    PAGODA_ASSERT_OK(client_->Push(chain_));
    client_->OpenSequence(kSequence, 256, 64, v1::PRECISION_Q8);
    Await([](const auto& s) { return s.sequences() == 1; });
    const auto lookup = client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain_)));
    PAGODA_ASSERT_OK(lookup);
    BeginPage();
    Await([](const auto& s) {
      return s.sessions() == 1 && s.leases() == 1 && s.leased_pages() == 4;
    });
  }
  void ExpectNothingHeld() {
    Await([](const auto& s) {
      return s.sessions() == 0 && s.leases() == 0 && s.sequences() == 0 && s.staged_pages() == 0;
    });
  }

  const ModelSpec spec_ = TestModel();
  FakeClock clock_;
  TestDaemon daemon_;
  v1::ScopeInfo scope_;
  std::vector<TestPage> chain_;
  std::unique_ptr<WireClient> client_;
  std::unique_ptr<WireClient> watcher_;
  std::unique_ptr<grpc::ClientContext> push_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PushRequest, v1::PushResponse>> push_;
};

TEST_F(SessionsTest, ABrokenClientHoldsNothing) {
  Begin();
  HoldEverything();
  client_->BreakSession();
  ExpectNothingHeld();
  push_context_->TryCancel();
  (void)push_->Finish();
}

TEST_F(SessionsTest, AClosedSessionHoldsNothingAndEndsWell) {
  Begin();
  HoldEverything();
  EXPECT_TRUE(client_->CloseSession().ok());
  ExpectNothingHeld();
  // The page that was begun is gone, and its stream with it.
  v1::PushResponse none;
  EXPECT_FALSE(push_->Read(&none));
  EXPECT_EQ(push_->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(SessionsTest, ASilentClientEndsAtTheTimeout) {
  daemon_.options().session_timeout = absl::Seconds(5);
  Begin();
  HoldEverything();
  clock_.Advance(absl::Seconds(4));
  client_->Send([] {
    v1::SessionRequest beat;
    beat.mutable_heartbeat();
    return beat;
  }());
  absl::SleepFor(absl::Milliseconds(200));
  clock_.Advance(absl::Seconds(4));
  daemon_.server().Sweep();
  Await([](const auto& s) { return s.sessions() == 1; });
  clock_.Advance(absl::Seconds(2));
  daemon_.server().Sweep();
  ExpectNothingHeld();
  v1::SessionResponse event;
  EXPECT_TRUE(client_->Receive(&event));  // the answer to the heartbeat
  EXPECT_GT(event.heartbeat_seconds(), 0);
  EXPECT_FALSE(client_->Receive(&event));
  EXPECT_EQ(client_->CloseSession().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  push_context_->TryCancel();
  (void)push_->Finish();
}

TEST_F(SessionsTest, LeasesExpireAreRenewedAndRequestsHaveOne) {
  daemon_.options().session_timeout = absl::Minutes(5);
  Begin();
  PAGODA_ASSERT_OK(client_->Push(chain_));
  const v1::LookupRequest request = client_->LookupFor(spec_, scope_, KeysOf(chain_));
  const auto first = client_->Lookup(request);
  PAGODA_ASSERT_OK(first);
  const auto second = client_->Lookup(request);
  PAGODA_ASSERT_OK(second);
  EXPECT_EQ(first->lease_id(), second->lease_id());
  EXPECT_EQ(client_->Status()->leases(), 1u);
  const auto other =
      client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain_), "request-id-00002"));
  PAGODA_ASSERT_OK(other);
  EXPECT_NE(other->lease_id(), first->lease_id());
  EXPECT_EQ(client_->Status()->leases(), 2u);

  clock_.Advance(absl::Seconds(20));
  v1::RenewRequest renew;
  v1::RenewResponse renewed;
  renew.set_session_id(client_->session_id());
  renew.set_lease_id(first->lease_id());
  ASSERT_TRUE(client_->cache().Renew(client_->Context().get(), renew, &renewed).ok());
  clock_.Advance(absl::Seconds(20));  // 40 s: the other one is over, this one is not
  daemon_.server().Sweep();
  EXPECT_EQ(client_->Status()->leases(), 1u);
  PAGODA_EXPECT_OK(client_->Fetch(client_->FetchFor(*first)));
  EXPECT_THAT(client_->Fetch(client_->FetchFor(*other)).status(), StatusIs(StatusCode::kNotFound));
  clock_.Advance(absl::Seconds(31));
  EXPECT_THAT(client_->Fetch(client_->FetchFor(*first)).status(), StatusIs(StatusCode::kNotFound));
  // Asked again for what is not there: the request's lease is given back.
  PAGODA_ASSERT_OK(client_->Lookup(request));
  const auto nothing = client_->Lookup(client_->LookupFor(spec_, scope_, {std::string(32, 'x')}));
  PAGODA_ASSERT_OK(nothing);
  daemon_.server().Sweep();
  EXPECT_EQ(client_->Status()->leases(), 0u);
}

TEST_F(SessionsTest, TheWindowStaysRaw16AndTheRestAges) {
  daemon_.options().session_timeout = absl::Minutes(5);
  daemon_.options().ladder.standard = Precision::kQ4;
  Begin();
  client_->OpenSequence(kSequence, 256, 128, v1::PRECISION_Q8);
  Await([](const auto& s) { return s.sequences() == 1; });
  PAGODA_ASSERT_OK(client_->Push(chain_, kSequence));
  ASSERT_TRUE(daemon_.server().AwaitEncoded(absl::Seconds(5)));
  const auto precisions = [&] {
    v1::LookupRequest peek = client_->LookupFor(spec_, scope_, KeysOf(chain_));
    peek.set_peek(true);
    std::vector<int> out;
    const auto lookup = client_->Lookup(peek);
    EXPECT_THAT(lookup, IsOk());
    for (const v1::PageInfo& page : lookup->pages()) out.push_back(page.precision());
    return out;
  };
  EXPECT_EQ(precisions(), (std::vector<int>{8, 8, 16, 16}));
  v1::SessionRequest advance;
  advance.mutable_advance_sequence()->set_sequence_id(kSequence);
  advance.mutable_advance_sequence()->set_length_tokens(320);
  client_->Send(advance);
  const auto await = [&](const std::vector<int>& wanted) {
    for (int i = 0; i < 500 && precisions() != wanted; ++i) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_EQ(precisions(), wanted);
  };
  await({8, 8, 8, 16});
  v1::SessionRequest close;
  close.mutable_close_sequence()->set_sequence_id(kSequence);
  client_->Send(close);
  await({4, 4, 4, 4});
}

TEST_F(SessionsTest, PagesPushedBeforeTheirSequenceOpensStayExact) {
  daemon_.options().session_timeout = absl::Minutes(5);
  daemon_.options().ladder.standard = Precision::kQ4;
  Begin();
  PAGODA_ASSERT_OK(client_->Push(chain_, kSequence));
  ASSERT_TRUE(daemon_.server().AwaitEncoded(absl::Seconds(5)));
  v1::LookupRequest peek = client_->LookupFor(spec_, scope_, KeysOf(chain_));
  peek.set_peek(true);
  EXPECT_EQ(client_->Lookup(peek)->pages(0).precision(), v1::PRECISION_RAW16);
  // Nobody opens it: after a session's timeout it is dropped and the pages age.
  client_->Send([] {
    v1::SessionRequest beat;
    beat.mutable_heartbeat();
    return beat;
  }());
  clock_.Advance(absl::Minutes(4));
  daemon_.server().Sweep();
  EXPECT_EQ(client_->Status()->sequences(), 1u);
  client_->Send([] {
    v1::SessionRequest beat;
    beat.mutable_heartbeat();
    return beat;
  }());
  absl::SleepFor(absl::Milliseconds(200));
  clock_.Advance(absl::Minutes(2));
  daemon_.server().Sweep();
  EXPECT_EQ(client_->Status()->sequences(), 0u);
  PAGODA_EXPECT_OK(client_->LookupUntil(peek, v1::PRECISION_Q4));
}

TEST_F(SessionsTest, WrongEventsAreAnsweredAndTheStreamStays) {
  Begin();
  const auto expect = [&](const v1::SessionRequest& request, StatusCode code) {
    ASSERT_TRUE(client_->Send(request));
    v1::SessionResponse event;
    ASSERT_TRUE(client_->Receive(&event));
    EXPECT_EQ(event.error_code(), static_cast<int>(code)) << event.error_message();
  };
  v1::SessionRequest request;
  request.mutable_open_sequence()->set_sequence_id("short");
  expect(request, StatusCode::kInvalidArgument);
  request.mutable_open_sequence()->set_sequence_id(kSequence);
  request.mutable_open_sequence()->set_precision(static_cast<v1::Precision>(77));
  expect(request, StatusCode::kInvalidArgument);
  request.mutable_advance_sequence()->set_sequence_id(kSequence);
  expect(request, StatusCode::kNotFound);
  request.mutable_close_sequence()->set_sequence_id(kSequence);
  expect(request, StatusCode::kNotFound);
  client_->OpenSequence(kSequence, 1, 1, v1::PRECISION_Q8);
  request.mutable_open_sequence()->set_sequence_id(kSequence);
  request.mutable_open_sequence()->set_precision(v1::PRECISION_Q8);
  expect(request, StatusCode::kAlreadyExists);
  EXPECT_TRUE(client_->CloseSession().ok());
}

}  // namespace
}  // namespace pagoda
