// Goal: where pages cannot come from another GPU, the client has a status for each within the
// deadline, takes the next path, and comes back by a new link; and no message of a client's does
// harm. Method: a real daemon on the host as its device, sockets as NCCL, with gates that stand for
// a network that stops; and Peer calls of our own.
#include <cmath>
#include <random>
#include <thread>

#include "proto/wire.h"
#include "storage/device/host_runtime.h"
#include "storage/device/host_transport.h"
#include "tests/integration/peer_fixture.h"

namespace pagoda {
namespace {

using absl::StatusCode;

absl::StatusOr<std::unique_ptr<PeerTransport>> OpenSockets(DeviceRuntime& device) {
  return std::make_unique<HostTransport>(device);
}

HostRuntimeOptions OtherDevice() {
  HostRuntimeOptions options;
  options.uuid.bytes[15] = 1;
  return options;
}

class PeerFetchTest : public PeerTest {
 protected:
  void StartWithLinks(int32_t links_max = 2) {
    UseDevice([this]() -> absl::StatusOr<std::unique_ptr<DeviceRuntime>> {
      auto runtime = std::make_unique<HostRuntime>();
      daemon_device_ = runtime.get();
      return runtime;
    });
    UseLinks(Gated(OpenSockets, daemon_gate_), links_max);
    Start();
  }
  client::ClientOptions Options() {
    return PeerClientOptions(daemon_.server().address(), &device_,
                             Gated(OpenSockets, client_gate_));
  }
  std::unique_ptr<client::Client> Client() { return Connected(Options()); }

  HostRuntime device_{OtherDevice()};  // the worker's
  HostRuntime* daemon_device_ = nullptr;
  const GatedTransport::Gate daemon_gate_ = GatedTransport::OpenGate();
  const GatedTransport::Gate client_gate_ = GatedTransport::OpenGate();
};

TEST_F(PeerFetchTest, WithoutLinksPagesComeOverGrpc) {
  UseDevice([] { return std::make_unique<HostRuntime>(); });
  Start();
  const auto hello = wire_->Hello(spec_);
  for (const std::string& plane : hello->capabilities().data_planes()) EXPECT_NE(plane, "nccl");
  const auto chain = Document();
  Push(chain);
  const auto client = Client();
  PeerLanding landing(device_);
  absl::StatusOr<Pages> pages = FetchSoon(*client, chain, landing.Targets());
  EXPECT_THAT(pages, StatusIs(StatusCode::kUnimplemented, "hbm.peer_links_max"));
  EXPECT_EQ(Fallbacks("absent"), 1);
  absl::SleepFor(absl::Milliseconds(120));  // it is not tried again
  EXPECT_THAT(FetchOnce(*client, chain, landing.Targets()), StatusIs(StatusCode::kUnimplemented));
  EXPECT_EQ(Fallbacks("absent"), 1);
  ExpectPushed(Fetch(*client, chain), chain);
  EXPECT_GE(client->stats().peer_fallbacks, 8);
}

TEST_F(PeerFetchTest, LinksThatAreAskedForMustBeHad) {
  UseDevice([] { return std::make_unique<HostRuntime>(); });
  UseLinks([](DeviceRuntime&) { return absl::UnavailableError("no such library"); });
  EXPECT_THAT(daemon_.TryStart(),
              StatusIs(StatusCode::kUnavailable,
                       "hbm.peer_links_max: 2 links cannot be had: no such library"));
  daemon_.options().hbm.device = "auto";
  Start();
  const auto hello = wire_->Hello(spec_);
  for (const std::string& plane : hello->capabilities().data_planes()) EXPECT_NE(plane, "nccl");
}

TEST_F(PeerFetchTest, SettingsAreChecked) {
  HbmSettings hbm;
  hbm.device = "0";
  for (const int32_t bad : {-1, 65}) {
    hbm.peer_links_max = bad;
    EXPECT_THAT(hbm.Validate(), StatusIs(StatusCode::kInvalidArgument, "hbm.peer_links_max"));
  }
  hbm.peer_links_max = 64;
  PAGODA_EXPECT_OK(hbm.Validate());
  hbm.device = "none";
  EXPECT_THAT(hbm.Validate(), StatusIs(StatusCode::kInvalidArgument, "device memory"));
  client::ClientOptions options;
  options.peer.staging_bytes = 4095;
  EXPECT_THAT(options.Validate(), StatusIs(StatusCode::kInvalidArgument, "peer.staging_bytes"));
}

// Links alone are a reason for device memory.
TEST_F(PeerFetchTest, SharedMemoryIsNotNeeded) {
  daemon_.options().shm.enabled = false;
  StartWithLinks();
  const auto hello = wire_->Hello(spec_);
  const auto& planes = hello->capabilities().data_planes();
  EXPECT_EQ(std::vector<std::string>(planes.begin(), planes.end()),
            (std::vector<std::string>{"nccl", "grpc"}));
  const auto chain = Document();
  Push(chain);
  const auto client = Client();
  PeerLanding landing(device_);
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
}

TEST_F(PeerFetchTest, WhoHasTheDaemonsGpuIsSentToItsHandles) {
  StartWithLinks();
  HostRuntime same;
  auto options = Options();
  options.device = &same;
  const auto client = Connected(options);
  const auto chain = Document();
  Push(chain);
  PeerLanding landing(same);
  EXPECT_THAT(FetchSoon(*client, chain, landing.Targets()),
              StatusIs(StatusCode::kFailedPrecondition, "MapDevice"));
  options.device = nullptr;
  EXPECT_THAT(FetchOnce(*Connected(options), chain, landing.Targets()),
              StatusIs(StatusCode::kFailedPrecondition, "ClientOptions.device"));
}

// Several requests for what one cannot move; pages that are larger than any, and such that are not
// in memory, are left out.
TEST_F(PeerFetchTest, WhatDoesNotFitComesLaterOrNot) {
  StartWithLinks();
  const auto chain = Document(5);
  Push(chain);
  auto options = Options();
  options.peer.staging_bytes = kMiB;  // two pages
  const auto client = Connected(options);
  PeerLanding landing(device_);
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
  EXPECT_EQ(client->stats().nccl.fetches, 1);
  options.peer.staging_bytes = kMiB / 2 - 4096;
  const auto small = Connected(options);
  const auto pages = FetchSoon(*small, chain, landing.Targets());
  PAGODA_ASSERT_OK(pages);
  EXPECT_THAT((*pages)[0], StatusIs(StatusCode::kOutOfRange, "staging_bytes"));
  EXPECT_EQ(Fallbacks("limit"), 5);
}

TEST_F(PeerFetchTest, PagesOnSsdAreLeftOut) {
  StartWithLinks();
  const auto cold = Document(3, 1);
  const auto warm = Document(2, 2);
  Push(cold);
  LeaveOnSsdOnly();
  Push(warm);
  const auto client = Client();
  PeerLanding landing(device_);
  ExpectAll(FetchSoon(*client, warm, landing.Targets()), warm, landing);
  const auto pages = FetchOnce(*client, cold, landing.Targets());
  PAGODA_ASSERT_OK(pages);
  for (size_t i = 0; i < pages->size(); ++i) {  // some may have come up meanwhile
    EXPECT_TRUE(absl::IsUnavailable((*pages)[i].status()) || landing.Sees((*pages)[i], cold[i]));
  }
  ExpectPushed(Fetch(*client, cold), cold);
}

TEST_F(PeerFetchTest, APageThatTheCallerHasNoMemoryForIsPassedOver) {
  StartWithLinks();
  const auto chain = Document();
  Push(chain);
  const auto client = Client();
  PeerLanding landing(device_);
  const client::DeviceTargets all = landing.Targets();
  const auto pages = FetchSoon(*client, chain, [&](uint32_t index, const PageHeader& header) {
    return index == 1 ? client::DeviceTarget() : all(index, header);
  });
  PAGODA_ASSERT_OK(pages);
  for (size_t i = 0; i < chain.size(); ++i) {
    if (i == 1) {
      EXPECT_THAT((*pages)[i], StatusIs(StatusCode::kCancelled));
    } else {
      EXPECT_TRUE(landing.Sees((*pages)[i], chain[i])) << i;
    }
  }
  EXPECT_EQ(client->stats().peer_pages, 3);
  EXPECT_EQ(client->stats().nccl.fallbacks, 1);
}

class PeerFetchGateTest : public PeerFetchTest, public ::testing::WithParamInterface<bool> {};

// Whichever end stands still: both give up by the deadline, and the next request goes by a new
// link.
TEST_P(PeerFetchGateTest, ATransferThatStandsStillEndsByItsDeadline) {
  StartWithLinks();
  const auto chain = Document();
  Push(chain);
  auto options = Options();
  options.transfer_timeout = absl::Seconds(1);
  const auto client = Connected(options);
  PeerLanding landing(device_);
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
  const GatedTransport::Gate& gate = GetParam() ? daemon_gate_ : client_gate_;
  gate->store(false, std::memory_order_release);
  const absl::Time start = absl::Now();
  const auto pages = FetchOnce(*client, chain, landing.Targets());
  EXPECT_LT(absl::Now() - start, kLong);
  EXPECT_THAT(pages, ::testing::Not(IsOk()));
  EXPECT_TRUE(LinksBecome(0));
  EXPECT_EQ(NcclFailures(), 1);
  EXPECT_EQ(client->stats().nccl.fallbacks, client->stats().peer_fallbacks / 4);
  ExpectPushed(Fetch(*client, chain), chain);  // meanwhile
  gate->store(true, std::memory_order_release);
  landing.Forget();
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
  EXPECT_EQ(Metric("pagoda_peer_links"), 1);
  EvictAll();
  EXPECT_TRUE(HbmBytesBecome(0));
}
INSTANTIATE_TEST_SUITE_P(Ends, PeerFetchGateTest, ::testing::Bool());

// What came is not what was committed: of that page alone.
TEST_F(PeerFetchTest, BytesThatChangedOnTheWayAreAMiss) {
  StartWithLinks();
  const auto chain = Document();
  Push(chain);
  // The daemon's copy is altered, as by a worker that maps its memory.
  const auto client = Client();
  PeerLanding landing(device_);
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
  HostRuntimeOptions same;
  HostRuntime mapping(same);
  const auto neighbour = DeviceClient(&mapping);
  const auto hit = Find(*neighbour, chain);
  PAGODA_ASSERT_OK(hit);
  auto mapped = neighbour->MapDevice(*hit, Keys(chain), {});
  PAGODA_ASSERT_OK(mapped);
  PAGODA_ASSERT_OK((*mapped)->Page(2));
  auto* const byte = const_cast<std::byte*>((*mapped)->Page(2)->segments[1]);
  PAGODA_ASSERT_OK((*mapped)->AwaitLayer(3, kLong));
  *byte ^= std::byte{1};
  const auto pages = FetchOnce(*client, chain, landing.Targets());
  PAGODA_ASSERT_OK(pages);
  for (size_t i = 0; i < chain.size(); ++i) {
    if (i == 2) {
      EXPECT_THAT((*pages)[i], StatusIs(StatusCode::kDataLoss, "segment 1"));
    } else {
      EXPECT_TRUE(landing.Sees((*pages)[i], chain[i])) << i;
    }
  }
}

TEST_F(PeerFetchTest, ALostDeviceIsAStatus) {
  StartWithLinks();
  const auto chain = Document();
  Push(chain);
  const auto client = Client();
  PeerLanding landing(device_);
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
  daemon_device_->Lose("a test");
  const auto pages = FetchOnce(*client, chain, landing.Targets());
  EXPECT_FALSE(pages.ok() && (*pages)[0].ok());
  ExpectPushed(Fetch(*client, chain), chain);
}

TEST_F(PeerFetchTest, AWorkersLostDeviceIsAStatus) {
  StartWithLinks();
  const auto chain = Document();
  Push(chain);
  {
    const auto client = Client();
    PeerLanding landing(device_);
    ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
    device_.Lose("a test");
    EXPECT_FALSE(FetchOnce(*client, chain, landing.Targets()).ok());
  }
  EXPECT_TRUE(LinksBecome(0));
  EvictAll();
  EXPECT_TRUE(HbmBytesBecome(0));
}

TEST_F(PeerFetchTest, ADaemonThatStopsInTheMiddleIsAStatus) {
  StartWithLinks();
  const auto chain = Document();
  Push(chain);
  const auto client = Client();
  PeerLanding landing(device_);
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
  daemon_gate_->store(false, std::memory_order_release);
  std::atomic<bool> coming{false};
  std::thread stopper([&] {
    while (!coming) absl::SleepFor(absl::Milliseconds(1));
    PAGODA_EXPECT_OK(daemon_.Stop());
  });
  EXPECT_FALSE(FetchOnce(*client, chain, landing.Targets([&](uint32_t) { coming = true; })).ok());
  stopper.join();
}

// Two threads of one client take turns; two clients have a link each.
TEST_F(PeerFetchTest, ManyAskAtOnce) {
  StartWithLinks();
  std::vector<std::vector<TestPage>> documents;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    documents.push_back(Document(3, seed));
    Push(documents.back());
  }
  const std::unique_ptr<client::Client> clients[] = {Client(), Client()};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      PeerLanding landing(device_);
      for (uint32_t round = 0; round < 6; ++round) {
        const auto& chain = documents[(round * 3 + t) % documents.size()];
        ExpectAll(FetchSoon(*clients[t % 2], chain, landing.Targets()), chain, landing);
        landing.Forget();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Metric("pagoda_peer_links"), 2);
  EXPECT_EQ(NcclFailures(), 0);
}

TEST_F(PeerFetchTest, LinksAreLimited) {
  StartWithLinks(/*links_max=*/1);
  const auto chain = Document();
  Push(chain);
  PeerLanding landing(device_);
  auto first = Client();
  ExpectAll(FetchSoon(*first, chain, landing.Targets()), chain, landing);
  const auto second = Client();
  absl::StatusOr<Pages> pages = FetchSoon(*second, chain, landing.Targets());
  EXPECT_THAT(pages, StatusIs(StatusCode::kResourceExhausted, "hbm.peer_links_max"));
  ExpectPushed(Fetch(*second, chain), chain);
  first.reset();
  const absl::Time end = absl::Now() + kLong;
  while (!pages.ok() && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(10));
    pages = FetchOnce(*second, chain, landing.Targets());
  }
  ExpectAll(pages, chain, landing);
}

// A Peer call of our own.
class PeerCall {
 public:
  explicit PeerCall(WireClient& wire)
      : context_(wire.Context(60)), stream_(wire.cache().Peer(context_.get())) {}
  ~PeerCall() {
    context_->TryCancel();
    if (!ended_) (void)stream_->Finish();
  }
  void Open(const std::string& session_id, const std::string& uuid = std::string(16, 'u'),
            uint64_t staging_bytes = 4 << 20) {
    v1::PeerRequest request;
    request.mutable_open()->set_session_id(session_id);
    request.mutable_open()->set_device_uuid(uuid);
    request.mutable_open()->set_staging_bytes(staging_bytes);
    (void)stream_->Write(request);
  }
  void Ask(const std::string& lease, uint32_t begin, uint32_t count) {
    v1::PeerRequest request;
    request.mutable_fetch()->set_tag(7);
    request.mutable_fetch()->set_lease_id(lease);
    request.mutable_fetch()->set_page_begin(begin);
    request.mutable_fetch()->set_page_count(count);
    (void)stream_->Write(request);
  }
  void Write(const v1::PeerRequest& request) { (void)stream_->Write(request); }
  bool Read(v1::PeerResponse& response) { return stream_->Read(&response); }
  absl::Status End() {
    v1::PeerResponse ignored;
    while (stream_->Read(&ignored)) {
    }
    ended_ = true;
    return FromGrpc(stream_->Finish());
  }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::PeerRequest, v1::PeerResponse>> stream_;
  bool ended_ = false;
};

TEST_F(PeerFetchTest, WrongMessagesAreRefused) {
  StartWithLinks();
  const auto refused = [&](const std::function<void(PeerCall&)>& say) {
    PeerCall call(*wire_);
    say(call);
    return call.End();
  };
  const std::string session = wire_->session_id();
  EXPECT_THAT(refused([&](PeerCall& call) { call.Ask("", 0, 1); }),
              StatusIs(StatusCode::kInvalidArgument, "open, which comes first"));
  EXPECT_THAT(refused([&](PeerCall& call) { call.Write({}); }),
              StatusIs(StatusCode::kInvalidArgument, "open"));
  EXPECT_THAT(refused([&](PeerCall& call) { call.Open(std::string(16, 'x')); }),
              StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(refused([&](PeerCall& call) { call.Open("short"); }),
              StatusIs(StatusCode::kInvalidArgument, "session_id"));
  EXPECT_THAT(refused([&](PeerCall& call) { call.Open(session, std::string(17, 'u')); }),
              StatusIs(StatusCode::kInvalidArgument, "device_uuid"));
  EXPECT_THAT(refused([&](PeerCall& call) { call.Open(session, std::string(16, 'u'), 4095); }),
              StatusIs(StatusCode::kInvalidArgument, "staging_bytes"));
  EXPECT_THAT(refused([&](PeerCall& call) { call.Open(session, std::string(8000, 'u')); }),
              StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(refused([&](PeerCall& call) {
                call.Open(session);
                call.Open(session);
              }),
              StatusIs(StatusCode::kInvalidArgument, "link is open"));
  EXPECT_TRUE(LinksBecome(0));
}

// Anything in any field, in any order, and hung up at any time.
TEST_F(PeerFetchTest, HostileMessagesDoNoHarm) {
  StartWithLinks(/*links_max=*/4);
  const auto chain = Document();
  Push(chain);
  const auto lookup = wire_->Lookup(wire_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  std::mt19937_64 random(1);
  for (int round = 0; round < 40; ++round) {
    PeerCall call(*wire_);
    const bool opens = round % 8 != 0;
    if (opens) {
      call.Open(wire_->session_id(), std::string(16, static_cast<char>(random())),
                random() >> (random() % 52));
    }
    HostTransport transport(device_);
    v1::PeerResponse response;
    if (opens && round % 2 == 0 && call.Read(response)) {
      PeerLinkId id;
      response.mutable_opened()->mutable_link_id()->resize(id.bytes.size());
      std::copy(response.opened().link_id().begin(), response.opened().link_id().end(),
                id.bytes.begin());
      (void)transport.Join(id, 1);
      for (int i = 0; i < 20; ++i) (void)transport.Poll();
    }
    for (uint64_t messages = random() % 3; messages > 0; --messages) {
      v1::PeerRequest request;
      v1::PeerFetch& fetch = *request.mutable_fetch();
      const double deadlines[] = {0, -1, 1e300, 1e-300, std::nan(""), 0.01};
      fetch.set_lease_id(random() % 4 == 0 ? "x" : lookup->lease_id());
      fetch.set_page_begin(static_cast<uint32_t>(random() % 6));
      fetch.set_page_count(static_cast<uint32_t>(random() % 3 == 0 ? random() : random() % 5));
      fetch.set_deadline_seconds(deadlines[random() % 6]);
      call.Write(request);
    }
  }
  EXPECT_TRUE(LinksBecome(0));
  const auto client = Client();
  PeerLanding landing(device_);
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
}

TEST_F(PeerFetchTest, ASessionHasTwoCalls) {
  StartWithLinks(/*links_max=*/8);
  PeerCall first(*wire_);
  PeerCall second(*wire_);
  v1::PeerResponse response;
  for (PeerCall* call : {&first, &second}) {
    call->Open(wire_->session_id());
    ASSERT_TRUE(call->Read(response));
    EXPECT_EQ(response.opened().link_id().size(), 128u);
    EXPECT_EQ(response.opened().request_bytes_max(), 4u << 20);
  }
  {
    PeerCall third(*wire_);
    third.Open(wire_->session_id());
    EXPECT_THAT(third.End(), StatusIs(StatusCode::kResourceExhausted, "2 links"));
  }
  // And ends with the session.
  wire_->BreakSession();
  EXPECT_THAT(first.End(), StatusIs(StatusCode::kUnavailable, "session has ended"));
  EXPECT_TRUE(LinksBecome(0));
}

TEST_F(PeerFetchTest, WrongLeasesAreAnswers) {
  StartWithLinks();
  const auto chain = Document();
  Push(chain);
  const auto lookup = wire_->Lookup(wire_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  PeerCall call(*wire_);
  call.Open(wire_->session_id());
  v1::PeerResponse response;
  ASSERT_TRUE(call.Read(response));
  // Joined by a rank of our own: requests are answered once the link is.
  PeerLinkId id;
  std::copy(response.opened().link_id().begin(), response.opened().link_id().end(),
            id.bytes.begin());
  HostTransport transport(device_);
  PAGODA_ASSERT_OK(transport.Join(id, 1));
  const absl::Time end = absl::Now() + kLong;
  while (!transport.Poll().value_or(true) && absl::Now() < end)
    absl::SleepFor(absl::Milliseconds(1));
  struct Case {
    std::string lease;
    uint32_t begin;
    uint32_t count;
    StatusCode code;
  };
  const std::string good = lookup->lease_id();
  std::string other = good;
  other[0] = static_cast<char>(other[0] + 1);
  for (const Case& wrong :
       {Case{"", 0, 1, StatusCode::kNotFound}, Case{other, 0, 1, StatusCode::kNotFound},
        Case{std::string(16, '\xff'), 0, 1, StatusCode::kNotFound},
        Case{good, 0, 5, StatusCode::kInvalidArgument},
        Case{good, 4, 1, StatusCode::kInvalidArgument},
        Case{good, UINT32_MAX, UINT32_MAX, StatusCode::kInvalidArgument}}) {
    call.Ask(wrong.lease, wrong.begin, wrong.count);
    ASSERT_TRUE(call.Read(response)) << call.End();
    EXPECT_EQ(response.pages().tag(), 7u);
    EXPECT_EQ(static_cast<StatusCode>(response.pages().code()), wrong.code)
        << response.pages().message();
    EXPECT_EQ(response.pages().pages_size(), 0);
  }
  // And the link still works.
  call.Ask(good, 0, 4);
  ASSERT_TRUE(call.Read(response));
  EXPECT_EQ(response.pages().pages_size(), 4);
  EXPECT_EQ(response.pages().pages(3).segment_bytes_size(), 2);
  EXPECT_EQ(response.pages().pages(3).segment_bytes(0), 256u << 10);
}

}  // namespace
}  // namespace pagoda
