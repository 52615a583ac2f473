// Goal: one Fetch call answers request after request; a refusal does not end it, the session's end
// does, and a client that does not read keeps nothing for longer than a lease. Method: an
// in-process daemon on a fake clock, streams by hand.
#include "cache-server/testing/test_daemon.h"
#include "proto/wire.h"
#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using absl::StatusCode;

class FetchStreamTest : public ::testing::Test {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::FetchRequest, v1::FetchResponse>;

  void SetUp() override {
    daemon_.Start(clock_);
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    const v1::ScopeInfo scope = client_->Hello(spec_)->scopes(0);
    chain_ = MakeChain(spec_, scope);
    PAGODA_ASSERT_OK(client_->OpenSession());
    PAGODA_ASSERT_OK(client_->Push(chain_));
    const auto lookup = client_->Lookup(client_->LookupFor(spec_, scope, KeysOf(chain_)));
    PAGODA_ASSERT_OK(lookup);
    request_ = client_->FetchFor(*lookup);
    context_ = client_->Context();
    stream_ = client_->cache().Fetch(context_.get());
  }
  struct Answer {
    absl::Status end = absl::UnknownError("no end came");
    int64_t bytes = 0;
  };
  Answer Read() {
    Answer answer;
    v1::FetchResponse response;
    while (stream_->Read(&response)) {
      for (const v1::Piece& piece : response.pieces()) {
        answer.bytes += static_cast<int64_t>(piece.data().size());
      }
      if (!response.has_end()) continue;
      answer.end =
          absl::Status(static_cast<StatusCode>(response.end().code()), response.end().message());
      break;
    }
    return answer;
  }
  Answer Ask(const v1::FetchRequest& request) {
    EXPECT_TRUE(stream_->Write(request));
    return Read();
  }
  int64_t ChainBytes() const {
    int64_t bytes = 0;
    for (const TestPage& page : chain_) {
      for (const std::string& segment : page.segments)
        bytes += static_cast<int64_t>(segment.size());
    }
    return bytes;
  }

  const ModelSpec spec_ = TestModel();
  FakeClock clock_;
  TestDaemon daemon_;
  std::vector<TestPage> chain_;
  std::unique_ptr<WireClient> client_;
  v1::FetchRequest request_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(FetchStreamTest, AnswersOneRequestAfterAnother) {
  for (int i = 0; i < 3; ++i) {
    const Answer whole = Ask(request_);
    PAGODA_EXPECT_OK(whole.end);
    EXPECT_EQ(whole.bytes, ChainBytes());
    v1::FetchRequest beyond = request_;
    beyond.set_page_begin(99);
    EXPECT_THAT(Ask(beyond).end, StatusIs(StatusCode::kInvalidArgument, "pages"));
    v1::FetchRequest unknown = request_;
    unknown.set_lease_id("no such lease id");
    EXPECT_THAT(Ask(unknown).end, StatusIs(StatusCode::kNotFound, "lease"));
    v1::FetchRequest other = request_;
    other.set_session_id("another-session!");
    EXPECT_THAT(Ask(other).end, StatusIs(StatusCode::kInvalidArgument, "session_id"));
  }
  stream_->WritesDone();
  v1::FetchResponse none;
  EXPECT_FALSE(stream_->Read(&none));
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(FetchStreamTest, ARefusalBeforeAnySessionEndsIt) {
  request_.set_session_id("another-session!");
  EXPECT_THAT(Ask(request_).end, StatusIs(StatusCode::kNotFound, "session"));
  v1::FetchResponse none;
  EXPECT_FALSE(stream_->Read(&none));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(FetchStreamTest, EndsWithItsSession) {
  PAGODA_EXPECT_OK(Ask(request_).end);
  EXPECT_TRUE(client_->CloseSession().ok());
  v1::FetchResponse none;
  EXPECT_FALSE(stream_->Read(&none));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(FetchStreamTest, AnIdleStreamEndsAtShutdown) {
  PAGODA_EXPECT_OK(Ask(request_).end);
  PAGODA_EXPECT_OK(daemon_.server().Shutdown(absl::Seconds(1)));
  v1::FetchResponse none;
  EXPECT_FALSE(stream_->Read(&none));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(FetchStreamTest, WhoDoesNotReadIsCutOffWithItsSession) {
  std::thread writer([this] {
    while (stream_->Write(request_)) {
    }
  });
  absl::SleepFor(absl::Milliseconds(300));  // windows and sockets are full by then, or soon
  client_->BreakSession();
  writer.join();  // the call is cancelled
  Answer answer;
  do {
    answer = Read();
  } while (answer.end.code() != StatusCode::kUnknown);
  EXPECT_FALSE(stream_->Finish().ok());
}

TEST_F(FetchStreamTest, WhoDoesNotReadIsCutOffAfterALease) {
  // More than windows and sockets hold: then an answer stands, and its pages with it.
  constexpr int64_t kAskedBytes = 64 << 20;
  std::thread writer([this] {
    for (int64_t asked = 0; asked < kAskedBytes; asked += ChainBytes()) {
      if (!stream_->Write(request_)) return;
    }
  });
  bool over = false;
  for (int i = 0; i < 200 && !over; ++i) {
    absl::SleepFor(absl::Milliseconds(50));
    clock_.Advance(absl::Seconds(20));  // two steps are more than a lease, and less than a session
    v1::SessionRequest beat;
    beat.mutable_heartbeat();
    client_->Send(beat);
    daemon_.server().Sweep();
    const auto lease = client_->Status();
    over = i > 4 && lease.ok() && lease->leased_pages() == 0;
  }
  EXPECT_TRUE(over);
  Answer answer;
  do {
    answer = Read();
  } while (answer.end.code() != StatusCode::kUnknown);
  writer.join();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace pagoda
