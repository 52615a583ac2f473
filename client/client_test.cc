// Goal: whatever a daemon does, the client answers in time, with right pages or none. Method: a
// daemon of our own in this process whose every answer the test chooses, wrong ones included.
#include "client/client.h"

#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "kernels/page_layout.h"
#include "pagoda/v1/cache.grpc.pb.h"
#include "proto/wire.h"
#include "storage/base/clock.h"
#include "storage/base/crc32c.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::client {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(5);

ModelSpec TestModel() {
  ModelSpec spec;
  spec.model = "test";
  spec.groups = {{GroupKind::kFull, 2, 1, 64, 0}};
  return spec;
}

std::string Raw(const PageKey& key) { return std::string(key.view().data(), key.view().size()); }

// A page as a daemon would send it.
struct TestPage {
  PageHeader header;
  std::vector<std::string> segments;
};

TestPage MakePage(const PageKey& key, const Identity& identity, char fill) {
  TestPage page;
  page.header.identity = identity;
  page.header.record.key = key;
  page.header.record.head_count = 1;
  page.header.layer_count = 2;
  page.header.head_dim = 64;
  page.header.page_tokens = 64;
  kernels::AppendPlanes(Precision::kRaw16, {2, 1, 64, 64}, page.header);
  for (SegmentEntry& segment : page.header.segments) {
    page.segments.emplace_back(segment.length, fill);
    segment.crc32c = Crc32c(AsBytes(page.segments.back()));
  }
  return page;
}

// Behaves well unless told otherwise.
class FakeDaemon : public v1::Cache::Service {
 public:
  using FetchStream = grpc::ServerReaderWriter<v1::FetchResponse, v1::FetchRequest>;
  using Fetcher = std::function<grpc::Status(const v1::FetchRequest&, FetchStream&)>;

  explicit FakeDaemon(int port = 0) {
    hello_.set_protocol_version(kProtocolVersion);
    hello_.set_known_answer(Raw(KnownAnswer()));
    hello_.set_page_tokens(64);
    hello_.set_tenant("local");
    const Identity identity = IdentityOf(TestModel());
    hello_.set_identity(identity.bytes.data(), identity.bytes.size());
    hello_.mutable_limits()->set_batch_pages_max(1000);
    v1::ScopeInfo& scope = *hello_.add_scopes();
    scope.set_kind(v1::SCOPE_KIND_PRIVATE);
    scope.set_name("local");
    scope.set_scope_id(std::string(16, 's'));
    scope.set_root(std::string(32, 'r'));
    scope.set_may_push(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.SetMaxReceiveMessageSize(64 << 20);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeDaemon() override { Stop(); }

  void Stop() {
    stopping_ = true;
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  int port() const { return port_; }
  v1::HelloResponse& hello() { return hello_; }  // change it before a client comes

  grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest* request,
                     v1::HelloResponse* response) override {
    for (const auto& [name, value] : context->client_metadata()) {
      if (name == kTokenMetadataKey) token_seen = std::string(value.data(), value.size());
    }
    (void)request;
    *response = hello_;
    return grpc::Status::OK;
  }

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) override {
    v1::SessionRequest request;
    v1::SessionResponse response;
    response.set_session_id(std::string(16, 'i'));
    response.set_heartbeat_seconds(heartbeat_seconds);
    while (stream->Read(&request)) {
      if (mute) continue;
      if (request.has_open_sequence()) ++sequences_opened;
      if (request.has_close_sequence()) ++sequences_closed;
      stream->Write(response);
      if (end_session.exchange(false)) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "bye");
    }
    (void)context;
    return grpc::Status::OK;
  }

  grpc::Status Lookup(grpc::ServerContext* context, const v1::LookupRequest* request,
                      v1::LookupResponse* response) override {
    while (stall_lookup && !context->IsCancelled() && !stopping_) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    response->set_lease_id(std::string(16, 'l'));
    response->set_lease_seconds(30);
    for (int i = 0; i < request->chains(0).keys_size() + extra_pages; ++i) {
      v1::PageInfo& page = *response->add_pages();
      page.set_state(v1::PAGE_STATE_READY);
      page.set_tier(v1::TIER_HOST);
      page.set_precision(v1::PRECISION_RAW16);
      page.set_fidelity(v1::PRECISION_RAW16);
    }
    return grpc::Status::OK;
  }

  grpc::Status Fetch(grpc::ServerContext* context, FetchStream* stream) override {
    ++fetch_streams;
    v1::FetchRequest request;
    while (stream->Read(&request)) {
      ++fetch_requests;
      while (stall_fetch && !context->IsCancelled() && !stopping_) {
        absl::SleepFor(absl::Milliseconds(5));
      }
      const grpc::Status status = fetcher ? fetcher(request, *stream) : grpc::Status::OK;
      if (!status.ok()) return status;
      v1::FetchResponse last;
      last.mutable_end();
      stream->Write(last);
      if (end_fetch_streams) return grpc::Status::OK;
    }
    return grpc::Status::OK;
  }

  grpc::Status Push(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::PushResponse, v1::PushRequest>* stream) override {
    v1::PushRequest request;
    v1::PushPage page;
    uint64_t bytes = 0;
    while (stream->Read(&request)) {
      if (request.has_page()) page = request.page();
      for (const v1::Piece& piece : request.pieces()) bytes += piece.data().size();
      if (!request.commit()) continue;
      while (stall_push && !context->IsCancelled() && !stopping_) {
        absl::SleepFor(absl::Milliseconds(5));
      }
      pushed_bytes = bytes;
      v1::PushResponse response;
      response.set_key(page.key());
      response.set_outcome(v1::PUSH_OUTCOME_STORED);
      if (refuse_push) {
        response.set_code(static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION));
        response.set_message("unknown parent");
      }
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

  std::atomic<double> heartbeat_seconds = 0.05;
  std::atomic<bool> mute = false;
  std::atomic<bool> end_session = false;
  std::atomic<bool> stall_lookup = false;
  std::atomic<bool> stall_fetch = false;
  std::atomic<bool> stall_push = false;
  std::atomic<bool> end_fetch_streams = false;  // each after one answer
  std::atomic<int> fetch_streams = 0;
  std::atomic<int> fetch_requests = 0;
  std::atomic<bool> refuse_push = false;
  std::atomic<int> extra_pages = 0;
  std::atomic<int> sequences_opened = 0;
  std::atomic<int> sequences_closed = 0;
  std::atomic<uint64_t> pushed_bytes = 0;
  std::string token_seen;
  Fetcher fetcher;

 private:
  v1::HelloResponse hello_;
  std::atomic<bool> stopping_ = false;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

std::unique_ptr<Client> Connect(const FakeDaemon& daemon, absl::Duration timeout = kSoon,
                                const std::function<void(ClientOptions&)>& change = {}) {
  ClientOptions options;
  options.target = absl::StrCat("127.0.0.1:", daemon.port());
  options.model = TestModel();
  options.token = "secret";
  options.control_timeout = absl::Milliseconds(500);
  options.transfer_timeout = absl::Milliseconds(500);
  options.reconnect_interval = absl::Milliseconds(20);
  if (change) change(options);
  auto client = Client::Create(options);
  EXPECT_THAT(client, IsOk());
  EXPECT_THAT((*client)->WaitConnected(timeout), IsOk());
  return *std::move(client);
}

template <typename Condition>
bool Eventually(Condition&& condition) {
  const absl::Duration until = SystemClock().Monotonic() + kSoon;
  while (!condition()) {
    if (SystemClock().Monotonic() > until) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

std::vector<PageKey> TestKeys(size_t count) {
  std::vector<uint32_t> ids(count * 64);
  std::iota(ids.begin(), ids.end(), 0);
  return KeyChain(PageKey{}, ids, 64);
}

LookupQuery QueryOf(const std::vector<PageKey>& keys) {
  LookupQuery query;
  query.chains = {{ScopeId{}, keys}};
  return query;
}

void SendWhole(const TestPage& page, uint32_t index, FakeDaemon::FetchStream& out) {
  v1::FetchResponse message;
  message.add_starts()->set_page_index(index);
  message.mutable_starts(0)->set_header(EncodePageHeader(page.header));
  message.mutable_starts(0)->set_tier(v1::TIER_SSD);
  for (size_t i = 0; i < page.segments.size(); ++i) {
    v1::Piece& piece = *message.add_pieces();
    piece.set_page_index(index);
    piece.set_segment_index(static_cast<uint32_t>(i));
    piece.set_data(page.segments[i]);
  }
  message.add_ends()->set_page_index(index);
  out.Write(message);
}

TEST(ClientTest, ConnectsAndKnowsItsScopes) {
  FakeDaemon daemon;
  auto client = Connect(daemon);
  EXPECT_EQ(daemon.token_seen, "Bearer secret");
  const auto scope = client->FindScope({ScopeKind::kPrivate, ""});
  ASSERT_TRUE(scope.has_value());
  EXPECT_EQ(scope->root.view(), absl::string_view(std::string(32, 'r')));
  EXPECT_TRUE(scope->may_push);
  EXPECT_FALSE(client->FindScope({ScopeKind::kPublic, ""}).has_value());
  EXPECT_FALSE(client->FindScope({ScopeKind::kGroup, "g"}).has_value());
}

TEST(ClientTest, BadOptionsAreRefusedByName) {
  ClientOptions options;
  options.target = "";
  EXPECT_THAT(Client::Create(options), StatusIs(absl::StatusCode::kInvalidArgument, "target"));
  options.target = "x:1";
  options.page_tokens = 0;
  EXPECT_THAT(Client::Create(options), StatusIs(absl::StatusCode::kInvalidArgument, "page_tokens"));
}

TEST(ClientTest, DaemonAwayIsAMissAtOnce) {
  ClientOptions options;
  options.target = "127.0.0.1:1";
  options.model = TestModel();
  auto client = Client::Create(options);
  PAGODA_ASSERT_OK(client);
  const absl::Duration start = SystemClock().Monotonic();
  EXPECT_THAT((*client)->Lookup(QueryOf(TestKeys(2))), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT((*client)->OpenPusher({}, nullptr), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_LT(SystemClock().Monotonic() - start, absl::Milliseconds(500));
  EXPECT_THAT((*client)->WaitConnected(absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kUnavailable, "127.0.0.1:1"));
  EXPECT_FALSE((*client)->connected());
}

TEST(ClientTest, AnotherProtocolOrHashIsRefusedInWords) {
  for (const bool other_version : {true, false}) {
    FakeDaemon daemon;
    if (other_version) {
      daemon.hello().set_protocol_version(2);
    } else {
      daemon.hello().set_known_answer(std::string(32, 'x'));
    }
    ClientOptions options;
    options.target = absl::StrCat("127.0.0.1:", daemon.port());
    auto client = Client::Create(options);
    PAGODA_ASSERT_OK(client);
    EXPECT_TRUE(Eventually([&] {
      return (*client)->WaitConnected(absl::ZeroDuration()).code() ==
             absl::StatusCode::kFailedPrecondition;
    }));
  }
}

TEST(ClientTest, FetchGivesExactlyTheCommittedBytes) {
  FakeDaemon daemon;
  const std::vector<PageKey> keys = TestKeys(2);
  const Identity identity = IdentityOf(TestModel());
  daemon.fetcher = [&](const v1::FetchRequest& request, auto& out) {
    for (uint32_t i = 0; i < request.page_count(); ++i) {
      const uint32_t index = request.page_begin() + i;
      SendWhole(MakePage(keys[index], identity, static_cast<char>('a' + index)), index, out);
    }
    return grpc::Status::OK;
  };
  auto client = Connect(daemon);
  const auto hit = client->Lookup(QueryOf(keys));
  PAGODA_ASSERT_OK(hit);
  ASSERT_EQ(hit->pages.size(), 2u);
  const auto fetched = client->Fetch(*hit, keys, {});
  PAGODA_ASSERT_OK(fetched);
  PAGODA_EXPECT_OK(fetched->status);
  ASSERT_EQ(fetched->pages.size(), 2u);
  EXPECT_EQ(fetched->pages[1].tier, PageTier::kSsd);
  const auto& segment = fetched->pages[1].segments[0];
  EXPECT_EQ(AsText(segment.span().subspan(0, fetched->pages[1].header.segments[0].length)),
            absl::string_view(std::string(fetched->pages[1].header.segments[0].length, 'b')));
  const auto second = client->Fetch(*hit, keys, {.page_begin = 1});
  PAGODA_ASSERT_OK(second);
  EXPECT_EQ(second->pages.size(), 1u);
  EXPECT_THAT(client->Fetch(*hit, keys, {.page_begin = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ClientTest, DamagedOrForeignPagesNeverArrive) {
  const std::vector<PageKey> keys = TestKeys(3);
  const Identity identity = IdentityOf(TestModel());
  const std::vector<std::pair<const char*, std::function<void(TestPage&, v1::FetchResponse&)>>>
      damages = {
          {"flipped byte", [](TestPage& p, auto&) { p.segments[0][7] ^= 1; }},
          {"another key", [&](TestPage& p, auto&) { p.header.record.key = keys[2]; }},
          {"another model", [](TestPage& p, auto&) { p.header.identity.bytes[0] ^= 1; }},
          {"short segment", [](TestPage& p, auto&) { p.segments[0].pop_back(); }},
          {"long segment", [](TestPage& p, auto&) { p.segments[0] += "x"; }},
          {"unknown page",
           [](TestPage&, v1::FetchResponse& m) { m.add_pieces()->set_page_index(9); }},
          {"unknown segment",
           [](TestPage&, v1::FetchResponse& m) {
             m.add_pieces()->set_page_index(1);
             m.mutable_pieces(0)->set_segment_index(99);
           }},
          {"huge page", [](TestPage& p, auto&) { p.header.segments[0].length = 2000000000; }},
      };
  for (const auto& [name, damage] : damages) {
    FakeDaemon daemon;
    daemon.fetcher = [&, &damage = damage](const v1::FetchRequest&, auto& out) {
      SendWhole(MakePage(keys[0], identity, 'a'), 0, out);
      TestPage bad = MakePage(keys[1], identity, 'b');
      v1::FetchResponse extra;
      damage(bad, extra);
      AssignOffsets(bad.header);
      SendWhole(bad, 1, out);
      if (extra.pieces_size() > 0) out.Write(extra);
      return grpc::Status::OK;
    };
    auto client = Connect(daemon);
    const std::vector<PageKey> two(keys.begin(), keys.begin() + 2);
    const auto hit = client->Lookup(QueryOf(two));
    PAGODA_ASSERT_OK(hit);
    const auto fetched = client->Fetch(*hit, two, {});
    PAGODA_ASSERT_OK(fetched);
    EXPECT_FALSE(fetched->status.ok() && fetched->pages.size() == 2 &&
                 std::string(name) != "unknown page" && std::string(name) != "unknown segment")
        << name;
    EXPECT_GE(fetched->pages.size(), 1u) << name;
  }
}

TEST(ClientTest, ATokenDoesNotTravelInPlainText) {
  ClientOptions options;
  options.token = "secret";
  for (const char* local : {"unix:/run/pagoda", "127.0.0.1:7070", "localhost:1", "[::1]:7070",
                            "dns:///localhost:7070"}) {
    options.target = local;
    PAGODA_EXPECT_OK(options.Validate());
  }
  for (const char* remote : {"10.0.0.1:7070", "pagoda.svc:7070", "[2001:db8::1]:7070"}) {
    options.target = remote;
    options.tls.insecure = false;
    EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, "plain text"));
    options.tls.insecure = true;
    PAGODA_EXPECT_OK(options.Validate());
  }
}

// A call for each fetch would cost more than the bytes of a small page.
TEST(ClientTest, FetchesShareStreams) {
  FakeDaemon daemon;
  const std::vector<PageKey> keys = TestKeys(1);
  daemon.fetcher = [&](const v1::FetchRequest&, auto& out) {
    SendWhole(MakePage(keys[0], IdentityOf(TestModel()), 'a'), 0, out);
    return grpc::Status::OK;
  };
  auto client = Connect(daemon);
  const auto hit = client->Lookup(QueryOf(keys));
  PAGODA_ASSERT_OK(hit);
  const auto fetch = [&] {
    const auto fetched = client->Fetch(*hit, keys, {});
    PAGODA_ASSERT_OK(fetched);
    PAGODA_EXPECT_OK(fetched->status);
    EXPECT_EQ(fetched->pages.size(), 1u);
  };
  for (int i = 0; i < 20; ++i) fetch();
  EXPECT_EQ(daemon.fetch_requests, 20);
  EXPECT_LT(daemon.fetch_streams, 20);  // one, unless a write was told of later than its answer

  // Streams that ended while nobody used them cost one more request, not a page.
  daemon.end_fetch_streams = true;
  for (int i = 0; i < 20; ++i) fetch();
  daemon.end_fetch_streams = false;

  // Many at once, some of which are given up on the way.
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) {
        if (t > 0) {
          fetch();
          continue;
        }
        const auto started = client->StartFetch(*hit, keys, {});
        PAGODA_ASSERT_OK(started);
        (*started)->Cancel();
        (void)(*started)->Wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ClientTest, APageThatEndsBadlyCutsThePrefix) {
  FakeDaemon daemon;
  const std::vector<PageKey> keys = TestKeys(2);
  daemon.fetcher = [&](const v1::FetchRequest&, auto& out) {
    SendWhole(MakePage(keys[0], IdentityOf(TestModel()), 'a'), 0, out);
    v1::FetchResponse message;
    message.add_ends()->set_page_index(1);
    message.mutable_ends(0)->set_code(static_cast<int>(grpc::StatusCode::DATA_LOSS));
    message.mutable_ends(0)->set_message("checksum on ssd");
    out.Write(message);
    return grpc::Status::OK;
  };
  auto client = Connect(daemon);
  const auto hit = client->Lookup(QueryOf(keys));
  PAGODA_ASSERT_OK(hit);
  const auto fetched = client->Fetch(*hit, keys, {});
  PAGODA_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->pages.size(), 1u);
  EXPECT_THAT(fetched->status, StatusIs(absl::StatusCode::kDataLoss, "checksum on ssd"));
}

TEST(ClientTest, SlowDaemonIsAMissAtTheDeadline) {
  FakeDaemon daemon;
  auto client = Connect(daemon);
  const std::vector<PageKey> keys = TestKeys(1);
  const auto hit = client->Lookup(QueryOf(keys));
  PAGODA_ASSERT_OK(hit);
  daemon.stall_lookup = true;
  EXPECT_THAT(client->Lookup(QueryOf(keys)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  daemon.stall_fetch = true;
  const auto fetched = client->Fetch(*hit, keys, {});
  PAGODA_ASSERT_OK(fetched);
  EXPECT_TRUE(fetched->pages.empty());
  EXPECT_THAT(fetched->status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(client->stats().lookup_failures, 1);
  EXPECT_EQ(client->stats().fetch_failures, 1);
}

TEST(ClientTest, MorePagesThanKeysIsNotAHit) {
  FakeDaemon daemon;
  daemon.extra_pages = 1;
  auto client = Connect(daemon);
  EXPECT_THAT(client->Lookup(QueryOf(TestKeys(2))), StatusIs(absl::StatusCode::kDataLoss));
}

struct PushResults {
  absl::Mutex mutex;
  std::vector<absl::StatusOr<PushOutcome>> outcomes ABSL_GUARDED_BY(mutex);
  PushCallback callback() {
    return [this](const PageKey&, const absl::StatusOr<PushOutcome>& outcome) {
      absl::MutexLock lock(&mutex);
      outcomes.push_back(outcome);
    };
  }
  size_t count() {
    absl::MutexLock lock(&mutex);
    return outcomes.size();
  }
};

PushItem ItemOf(const TestPage& page) {
  PushItem item;
  auto copy = std::make_shared<std::vector<std::string>>(page.segments);
  item.key = page.header.record.key;
  item.parent_is_root = true;
  for (const std::string& segment : *copy) {
    item.segments.push_back(AsBytes(segment));
    item.segment_crc32c.push_back(Crc32c(AsBytes(segment)));
  }
  item.owner = copy;
  return item;
}

TEST(ClientTest, PushesPagesOfManyMessages) {
  FakeDaemon daemon;
  auto client = Connect(daemon);
  PushResults results;
  auto pusher = client->OpenPusher({}, results.callback());
  PAGODA_ASSERT_OK(pusher);
  TestPage page = MakePage(TestKeys(1)[0], IdentityOf(TestModel()), 'p');
  page.segments.resize(5, std::string(900000, 'q'));
  size_t bytes = 0;
  for (const std::string& segment : page.segments) bytes += segment.size();
  for (int i = 0; i < 3; ++i) PAGODA_ASSERT_OK((*pusher)->Push(ItemOf(page)));
  PAGODA_ASSERT_OK((*pusher)->Flush(kSoon));
  EXPECT_EQ(daemon.pushed_bytes, 3 * bytes);
  EXPECT_TRUE(Eventually([&] { return results.count() == 3; }));
  daemon.refuse_push = true;
  PAGODA_ASSERT_OK((*pusher)->Push(ItemOf(page)));
  PAGODA_ASSERT_OK((*pusher)->Flush(kSoon));
  EXPECT_TRUE(Eventually([&] { return results.count() == 4; }));
  absl::MutexLock lock(&results.mutex);
  EXPECT_EQ(*results.outcomes[0], PushOutcome::kStored);
  EXPECT_THAT(results.outcomes[3], StatusIs(absl::StatusCode::kFailedPrecondition, "parent"));
}

TEST(ClientTest, PushNeverWaitsAndNeverGrows) {
  FakeDaemon daemon;
  daemon.stall_push = true;
  auto client = Connect(daemon, kSoon, [](ClientOptions& o) { o.push_queue_bytes_max = 100000; });
  PushResults results;
  auto pusher = client->OpenPusher({}, results.callback());
  PAGODA_ASSERT_OK(pusher);
  const TestPage page = MakePage(TestKeys(1)[0], IdentityOf(TestModel()), 'p');
  int queued = 0;
  absl::Status last;
  while ((last = (*pusher)->Push(ItemOf(page))).ok()) ++queued;
  EXPECT_THAT(last, StatusIs(absl::StatusCode::kResourceExhausted, "of 100000 bytes"));
  EXPECT_GE(queued, 1);
  EXPECT_THAT((*pusher)->Flush(absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  // The oldest page is not answered within transfer_timeout: the stream is given up.
  EXPECT_TRUE(Eventually([&] { return results.count() == static_cast<size_t>(queued); }));
  EXPECT_THAT((*pusher)->Push(ItemOf(page)), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT((*pusher)->Push(PushItem()), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ClientTest, ClosingWhilePushingAnswersEveryPage) {
  FakeDaemon daemon;
  daemon.stall_push = true;
  PushResults results;
  {
    auto client = Connect(daemon);
    auto pusher = client->OpenPusher({}, results.callback());
    PAGODA_ASSERT_OK(pusher);
    const TestPage page = MakePage(TestKeys(1)[0], IdentityOf(TestModel()), 'p');
    for (int i = 0; i < 4; ++i) PAGODA_ASSERT_OK((*pusher)->Push(ItemOf(page)));
  }
  EXPECT_EQ(results.count(), 4u);
}

TEST(ClientTest, ComesBackAfterARestartAndOpensSequencesAgain) {
  auto daemon = std::make_unique<FakeDaemon>();
  const int port = daemon->port();
  auto client = Connect(*daemon);
  const SequenceId sequence = client->OpenSequence(100, 256, Precision::kQ8);
  EXPECT_TRUE(Eventually([&] { return daemon->sequences_opened == 1; }));
  daemon.reset();
  EXPECT_TRUE(Eventually([&] { return !client->connected(); }));
  EXPECT_THAT(client->Lookup(QueryOf(TestKeys(1))), StatusIs(absl::StatusCode::kUnavailable));
  daemon = std::make_unique<FakeDaemon>(port);
  ASSERT_EQ(daemon->port(), port);
  PAGODA_ASSERT_OK(client->WaitConnected(kSoon));
  EXPECT_TRUE(Eventually([&] { return daemon->sequences_opened == 1; }));
  PAGODA_EXPECT_OK(client->Lookup(QueryOf(TestKeys(1))));
  client->CloseSequence(sequence);
  client->CloseSequence(sequence);
  EXPECT_TRUE(Eventually([&] { return daemon->sequences_closed == 1; }));
  EXPECT_EQ(client->stats().reconnects, 1);
}

TEST(ClientTest, ASessionThatEndsOrFallsSilentIsReplaced) {
  FakeDaemon daemon;
  auto client = Connect(daemon);
  daemon.end_session = true;
  EXPECT_TRUE(Eventually([&] { return client->stats().reconnects >= 1; }));
  PAGODA_ASSERT_OK(client->WaitConnected(kSoon));
  daemon.mute = true;  // Reads on, says nothing: a stopped process looks like this.
  EXPECT_TRUE(Eventually([&] { return !client->connected(); }));
  daemon.mute = false;
  PAGODA_ASSERT_OK(client->WaitConnected(kSoon));
}

}  // namespace
}  // namespace pagoda::client
