// Goal: whatever a client gets wrong is refused with the right code, leaves nothing behind, and the
// daemon goes on. Method: an in-process daemon, one wrong thing at a time.
#include "cache-server/testing/test_daemon.h"
#include "proto/wire.h"
#include "storage/base/crc32c.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using absl::StatusCode;

class RefusalsTest : public ::testing::Test {
 protected:
  RefusalsTest() {
    daemon_.Start();
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    hello_ = *client_->Hello(spec_);
    scope_ = hello_.scopes(0);
    const absl::Status opened = client_->OpenSession();
    EXPECT_THAT(opened, IsOk());
  }
  // Still alive, and nothing half-done is kept.
  ~RefusalsTest() override {
    const auto status = client_->Status();
    EXPECT_THAT(status, IsOk());
    if (status.ok()) {
      EXPECT_EQ(status->staged_pages(), 0u);
    }
  }
  absl::Status Hello(const std::function<void(v1::HelloRequest&)>& change) {
    v1::HelloRequest request;
    request.set_protocol_version_min(1);
    request.set_protocol_version_max(1);
    *request.mutable_model() = ToWire(spec_);
    change(request);
    v1::HelloResponse response;
    return FromGrpc(client_->cache().Hello(client_->Context().get(), request, &response));
  }
  v1::PushResponse PushOne(const TestPage& page) {
    const auto pushed = client_->Push({page});
    EXPECT_THAT(pushed, IsOk());
    if (!pushed.ok() || pushed->size() != 1) return {};
    return (*pushed)[0];
  }
  void ExpectPush(const TestPage& page, StatusCode code, const char* word) {
    const v1::PushResponse response = PushOne(page);
    EXPECT_EQ(response.code(), static_cast<int>(code)) << response.message();
    EXPECT_NE(response.message().find(word), std::string::npos)
        << response.message() << " lacks " << word;
    EXPECT_EQ(response.outcome(), v1::PUSH_OUTCOME_UNSPECIFIED);
    EXPECT_EQ(response.key(), page.start.key());
  }

  const ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
  std::unique_ptr<WireClient> client_;
  v1::HelloResponse hello_;
  v1::ScopeInfo scope_;
};

TEST_F(RefusalsTest, Hello) {
  PAGODA_EXPECT_OK(Hello([](auto& r) { r.set_known_answer(std::string(KnownAnswer().view())); }));
  PAGODA_EXPECT_OK(Hello([](auto& r) { r.set_protocol_version_max(9); }));
  PAGODA_EXPECT_OK(Hello([](auto& r) { r.clear_model(); }));
  EXPECT_EQ(absl::string_view(hello_.known_answer()), KnownAnswer().view());
  EXPECT_EQ(hello_.tenant(), "local");
  EXPECT_EQ(hello_.scopes_size(), 2);
  EXPECT_EQ(hello_.limits().batch_pages_max(), 4096u);
  EXPECT_THAT(Hello([](auto& r) { r.set_known_answer(std::string(32, 'x')); }),
              StatusIs(StatusCode::kFailedPrecondition, "known_answer"));
  EXPECT_THAT(Hello([](auto& r) { r.set_known_answer("x"); }),
              StatusIs(StatusCode::kFailedPrecondition, "known_answer"));
  EXPECT_THAT(Hello([](auto& r) { r.set_protocol_version_min(0); }),
              StatusIs(StatusCode::kInvalidArgument, "protocol_version"));
  EXPECT_THAT(Hello([](auto& r) { r.set_protocol_version_max(0); }),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Hello([](auto& r) {
                r.set_protocol_version_min(2);
                r.set_protocol_version_max(3);
              }),
              StatusIs(StatusCode::kFailedPrecondition, "2 to 3"));
  EXPECT_THAT(Hello([](auto& r) { r.set_page_tokens(48); }),
              StatusIs(StatusCode::kInvalidArgument, "page_tokens"));
  EXPECT_THAT(Hello([](auto& r) { r.mutable_model()->clear_groups(); }),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Hello([](auto& r) { r.mutable_model()->mutable_groups(0)->set_head_dim(0); }),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(
      Hello([](auto& r) { r.mutable_model()->mutable_groups(0)->set_layer_count(1 << 30); }),
      StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Hello([](auto& r) { r.mutable_model()->set_kv_dtype(static_cast<v1::KvDtype>(77)); }),
              StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(RefusalsTest, Lookup) {
  const std::vector<std::string> keys = {std::string(32, 'k')};
  const v1::LookupRequest good = client_->LookupFor(spec_, scope_, keys);
  const auto miss = client_->Lookup(good);
  PAGODA_ASSERT_OK(miss);
  EXPECT_EQ(miss->pages_size(), 0);
  EXPECT_TRUE(miss->lease_id().empty());
  const auto broken = [&](const std::function<void(v1::LookupRequest&)>& change) {
    v1::LookupRequest request = good;
    change(request);
    return client_->Lookup(request).status();
  };
  EXPECT_THAT(broken([](auto& r) { r.mutable_chains(0)->set_keys(0, std::string(31, 'k')); }),
              StatusIs(StatusCode::kInvalidArgument, "chains.keys"));
  EXPECT_THAT(broken([](auto& r) { r.clear_chains(); }),
              StatusIs(StatusCode::kInvalidArgument, "chains"));
  EXPECT_THAT(broken([](auto& r) { r.set_identity("x"); }),
              StatusIs(StatusCode::kInvalidArgument, "identity"));
  EXPECT_THAT(broken([](auto& r) { r.set_precision_min(static_cast<v1::Precision>(5)); }),
              StatusIs(StatusCode::kInvalidArgument, "precision"));
  EXPECT_THAT(broken([](auto& r) { r.set_fidelity_min(static_cast<v1::Precision>(-1)); }),
              StatusIs(StatusCode::kInvalidArgument, "precision"));
  EXPECT_THAT(broken([](auto& r) { r.set_request_id("x"); }),
              StatusIs(StatusCode::kInvalidArgument, "request_id"));
  EXPECT_THAT(broken([](auto& r) { r.set_session_id(std::string(16, 'x')); }),
              StatusIs(StatusCode::kNotFound, "session"));
  EXPECT_THAT(broken([](auto& r) { r.mutable_part()->set_group(1); }),
              StatusIs(StatusCode::kInvalidArgument, "part.group"));
  EXPECT_THAT(broken([](auto& r) { r.mutable_part()->set_head_count(3); }),
              StatusIs(StatusCode::kInvalidArgument, "heads"));
  EXPECT_THAT(broken([](auto& r) { r.mutable_chains(0)->set_scope_id(std::string(16, 'x')); }),
              StatusIs(StatusCode::kPermissionDenied));
  EXPECT_THAT(broken([](auto& r) {
                for (int i = 0; i < 4096; ++i) r.mutable_chains(0)->add_keys(std::string(32, 'k'));
              }),
              StatusIs(StatusCode::kResourceExhausted, "batch_pages_max"));
  EXPECT_THAT(broken([](auto& r) {
                for (int i = 0; i < 5000; ++i) {
                  r.mutable_chains(0)->add_keys(std::string(1000, 'k'));
                }
              }),
              StatusIs(StatusCode::kResourceExhausted, "control_message_bytes_max"));
  // Above what gRPC itself takes.
  EXPECT_THAT(broken([](auto& r) { r.set_sequence_id(std::string(9 << 20, 'x')); }),
              StatusIs(StatusCode::kResourceExhausted));
  // A model that nobody announced has no pages: a miss. A peek needs no session.
  PAGODA_EXPECT_OK(broken([](auto& r) { r.set_identity(std::string(32, 'i')); }));
  PAGODA_EXPECT_OK(broken([](auto& r) {
    r.clear_session_id();
    r.clear_request_id();
    r.set_peek(true);
  }));
}

TEST_F(RefusalsTest, PushedPages) {
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  const auto broken = [&](const std::function<void(TestPage&)>& change, StatusCode code,
                          const char* word) {
    TestPage page = chain[0];
    change(page);
    SCOPED_TRACE(word);
    ExpectPush(page, code, word);
  };
  using P = TestPage&;
  broken([](P p) { p.start.set_token_ids(3, 4711); }, StatusCode::kInvalidArgument, "key");
  broken([](P p) { p.start.set_extra("x"); }, StatusCode::kInvalidArgument, "key");
  broken([](P p) { p.start.mutable_token_ids()->RemoveLast(); }, StatusCode::kInvalidArgument,
         "token_ids");
  broken([](P p) { p.start.set_key("short"); }, StatusCode::kInvalidArgument, "key");
  broken([](P p) { p.start.set_parent(std::string(32, 'p')); }, StatusCode::kInvalidArgument,
         "root");
  broken([](P p) { p.start.set_base_position(64); }, StatusCode::kInvalidArgument, "base_position");
  broken([](P p) { p.start.set_segment_crc32c(0, 1); }, StatusCode::kDataLoss, "checksum");
  broken([](P p) { p.segments[0][17] ^= 1; }, StatusCode::kDataLoss, "checksum");
  broken([](P p) { p.start.add_segment_crc32c(1); }, StatusCode::kInvalidArgument,
         "segment_crc32c");
  broken([](P p) { p.segments[0].pop_back(); }, StatusCode::kInvalidArgument, "commit");
  broken([](P p) { p.segments[0] += "x"; }, StatusCode::kInvalidArgument, "pieces");
  broken([](P p) { p.segments.push_back("x"); }, StatusCode::kInvalidArgument, "more bytes");
  broken([](P p) { p.segments[0].clear(); }, StatusCode::kInvalidArgument, "pieces");
  broken([](P p) { p.start.set_scope_id(std::string(16, 's')); }, StatusCode::kPermissionDenied,
         "no right");
  broken([](P p) { p.start.set_identity(std::string(32, 'i')); }, StatusCode::kFailedPrecondition,
         "Hello");
  broken([](P p) { p.start.set_precision(v1::PRECISION_Q8); }, StatusCode::kUnimplemented, "raw16");
  broken([](P p) { p.start.add_extra_planes()->set_kind(v1::PLANE_KIND_DIGEST_QUEST); },
         StatusCode::kUnimplemented, "extra_planes");
  broken([](P p) { p.start.mutable_part()->set_group(200); }, StatusCode::kInvalidArgument,
         "group");
  broken([](P p) { p.start.mutable_part()->set_head_count(9); }, StatusCode::kInvalidArgument,
         "heads");
  broken(
      [](P p) {
        p.start.clear_token_ids();
        p.start.set_page_tokens(4000000000u);
      },
      StatusCode::kInvalidArgument, "4000000000");
  broken(
      [](P p) {
        p.start.clear_token_ids();
        p.start.set_page_tokens(0);
      },
      StatusCode::kInvalidArgument, "");
  broken([](P p) { p.start.set_fidelity(static_cast<v1::Precision>(99)); },
         StatusCode::kInvalidArgument, "precision");
  ExpectPush(chain[1], StatusCode::kFailedPrecondition, "parent");
  // Without token ids the key is taken on trust; the page is fine.
  TestPage trusted = chain[0];
  trusted.start.clear_token_ids();
  EXPECT_EQ(PushOne(trusted).outcome(), v1::PUSH_OUTCOME_STORED);
  // A child at another place than where its parent ends.
  TestPage misplaced = chain[1];
  misplaced.start.set_base_position(128);
  ExpectPush(misplaced, StatusCode::kInvalidArgument, "parent ends at 64");
  const auto status = client_->Status();
  PAGODA_ASSERT_OK(status);
  EXPECT_EQ(status->pages(), 1u);
}

TEST_F(RefusalsTest, PushStreams) {
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  const auto run = [&](std::vector<v1::PushRequest> messages,
                       std::vector<v1::PushResponse>* answers) {
    const auto context = client_->Context();
    const auto stream = client_->cache().Push(context.get());
    if (!messages.empty() && messages[0].session_id().empty()) {
      messages[0].set_session_id(client_->session_id());
    }
    for (const v1::PushRequest& message : messages) {
      if (!stream->Write(message)) break;
    }
    stream->WritesDone();
    v1::PushResponse answer;
    while (stream->Read(&answer)) answers->push_back(answer);
    return FromGrpc(stream->Finish());
  };
  std::vector<v1::PushResponse> answers;
  v1::PushRequest commit;
  commit.set_commit(true);
  v1::PushRequest piece;
  piece.add_pieces()->set_data("x");
  v1::PushRequest page;
  *page.mutable_page() = chain[0].start;
  v1::PushRequest stranger = page;
  stranger.set_session_id(std::string(16, 'x'));

  PAGODA_EXPECT_OK(run({}, &answers));
  EXPECT_THAT(run({commit}, &answers), StatusIs(StatusCode::kInvalidArgument, "no page"));
  EXPECT_THAT(run({piece}, &answers), StatusIs(StatusCode::kInvalidArgument, "no page"));
  EXPECT_THAT(run({stranger}, &answers), StatusIs(StatusCode::kNotFound, "session"));
  EXPECT_TRUE(answers.empty());
  // Begun and left: nothing stays. Begun twice: the first is answered as not committed.
  PAGODA_EXPECT_OK(run({page}, &answers));
  EXPECT_TRUE(answers.empty());
  PAGODA_EXPECT_OK(run({page, page}, &answers));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].code(), static_cast<int>(StatusCode::kInvalidArgument));
  // Pieces out of order, and a hole.
  answers.clear();
  v1::PushRequest hole = page;
  v1::Piece& late = *hole.add_pieces();
  late.set_offset(64);
  late.set_data("xxxx");
  hole.set_commit(true);
  v1::PushRequest other_segment = page;
  other_segment.add_pieces()->set_segment_index(4000000000u);
  other_segment.set_commit(true);
  PAGODA_EXPECT_OK(run({hole, other_segment}, &answers));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_NE(answers[0].message().find("expected segment 0 offset 0"), std::string::npos);
  EXPECT_EQ(answers[1].code(), static_cast<int>(StatusCode::kInvalidArgument));
  // More than the control part may hold.
  v1::PushRequest fat = page;
  fat.mutable_page()->set_extra(std::string(2 << 20, 'x'));
  EXPECT_THAT(run({fat}, &answers), StatusIs(StatusCode::kResourceExhausted));
}

TEST_F(RefusalsTest, FetchAndLeases) {
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  PAGODA_ASSERT_OK(client_->Push(chain));
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  const v1::FetchRequest good = client_->FetchFor(*lookup);
  const auto broken = [&](const std::function<void(v1::FetchRequest&)>& change) {
    v1::FetchRequest request = good;
    change(request);
    return client_->Fetch(request).status();
  };
  EXPECT_THAT(broken([](auto& r) { r.set_page_count(0); }), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(broken([](auto& r) { r.set_page_count(5); }),
              StatusIs(StatusCode::kInvalidArgument, "the lease has 4"));
  EXPECT_THAT(broken([](auto& r) { r.set_page_begin(4000000000u); }),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(broken([](auto& r) { r.set_layer_begin(4); }),
              StatusIs(StatusCode::kInvalidArgument, "layers"));
  EXPECT_THAT(broken([](auto& r) { r.set_layer_count(4000000000u); }),
              StatusIs(StatusCode::kInvalidArgument, "layers"));
  EXPECT_THAT(broken([](auto& r) { r.add_planes()->set_kind(v1::PLANE_KIND_DIGEST_QUEST); }),
              StatusIs(StatusCode::kUnimplemented, "not served yet"));
  EXPECT_THAT(broken([](auto& r) { r.add_planes()->set_kind(v1::PLANE_KIND_UNSPECIFIED); }),
              StatusIs(StatusCode::kInvalidArgument, "planes.kind"));
  EXPECT_THAT(broken([](auto& r) { r.add_planes()->set_kind(static_cast<v1::PlaneKind>(99)); }),
              StatusIs(StatusCode::kInvalidArgument, "planes.kind"));
  EXPECT_THAT(broken([](auto& r) { r.set_precision_max(static_cast<v1::Precision>(5)); }),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(broken([](auto& r) { r.set_lease_id("x"); }), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(broken([](auto& r) { r.set_lease_id(std::string(16, 'x')); }),
              StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(broken([](auto& r) { r.set_session_id(std::string(16, 'x')); }),
              StatusIs(StatusCode::kNotFound, "session"));
  // Another session has no part in this lease.
  WireClient other(daemon_.server().address());
  PAGODA_ASSERT_OK(other.OpenSession());
  EXPECT_THAT(broken([&](auto& r) { r.set_session_id(other.session_id()); }),
              StatusIs(StatusCode::kNotFound));

  v1::RenewRequest renew;
  v1::RenewResponse renewed;
  renew.set_session_id(client_->session_id());
  renew.set_lease_id(lookup->lease_id());
  EXPECT_TRUE(client_->cache().Renew(client_->Context().get(), renew, &renewed).ok());
  EXPECT_EQ(renewed.lease_seconds(), 30);
  v1::ReleaseRequest release;
  v1::ReleaseResponse released;
  release.set_session_id(client_->session_id());
  release.add_lease_ids(lookup->lease_id());
  release.add_lease_ids("nonsense");
  for (int i = 0; i < 2; ++i) {  // idempotent
    EXPECT_TRUE(client_->cache().Release(client_->Context().get(), release, &released).ok());
  }
  EXPECT_EQ(client_->cache().Renew(client_->Context().get(), renew, &renewed).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(client_->Fetch(good).status(), StatusIs(StatusCode::kNotFound));
}

TEST_F(RefusalsTest, AnotherIdentityNeverHits) {
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  PAGODA_ASSERT_OK(client_->Push(chain));
  ModelSpec other = spec_;
  other.rope.theta = 10001;
  const auto hello = client_->Hello(other);
  PAGODA_ASSERT_OK(hello);
  EXPECT_NE(hello->scopes(0).root(), scope_.root());
  // Even with the right keys of the other model.
  const auto lookup = client_->Lookup(client_->LookupFor(other, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  EXPECT_EQ(lookup->pages_size(), 0);
}

}  // namespace
}  // namespace pagoda
