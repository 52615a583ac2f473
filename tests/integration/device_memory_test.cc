// Goal: where device memory cannot be had, the client reads host memory, it is counted why, and no
// packet of a client's does harm. Method: a real daemon on the host as its device, which is lost,
// full or refuses; callers without the right; connections of our own that send what they should
// not.
#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "cache-server/hbm.h"
#include "storage/device/host_runtime.h"
#include "storage/device/memory_import.h"
#include "tests/integration/device_fixture.h"

namespace pagoda {
namespace {

using absl::StatusCode;

class DeviceMemoryTest : public DeviceTest {
 protected:
  void StartWithDevice(int64_t capacity_bytes = 8 * kMiB) {
    UseDevice(
        [this]() -> absl::StatusOr<std::unique_ptr<DeviceRuntime>> {
          auto runtime = std::make_unique<HostRuntime>();
          daemon_device_ = runtime.get();
          return runtime;
        },
        capacity_bytes);
    Start();
  }
  absl::StatusOr<std::unique_ptr<client::DevicePages>> Map(client::Client& client,
                                                           const std::vector<TestPage>& chain) {
    const auto hit = Find(client, chain);
    if (!hit.ok()) return hit.status();
    return client.MapDevice(*hit, Keys(chain), {});
  }

  // Test pages are of that scope of acme's.
  void StartWithTokens(int scope) {
    const std::string path = daemon_.folder() + "/tokens.yaml";
    std::ofstream(path) << "tokens:\n"
                           "  - {token: acme-token-000001, tenant: acme, groups: [legal]}\n"
                           "  - {token: view-token-000001, tenant: acme, push: false}\n";
    ::chmod(path.c_str(), 0600);
    daemon_.options().token_file = path;
    UseDevice([] { return std::make_unique<HostRuntime>(); });
    daemon_.Start();
    wire_ = std::make_unique<WireClient>(daemon_.server().address(), "acme-token-000001");
    scope_ = wire_->Hello(spec_)->scopes(scope);
    PAGODA_ASSERT_OK(wire_->OpenSession());
  }

  std::unique_ptr<client::DevicePages> MapOfAGroup() {
    StartWithTokens(/*scope=*/1);
    const auto chain = Document(2);
    Push(chain);
    client_ = DeviceClient(&device_, 256, "acme-token-000001");
    client::LookupQuery query;
    query.chains = {{client_->FindScope({ScopeKind::kGroup, "legal"})->id, Keys(chain)}};
    const auto hit = client_->Lookup(query);
    return *client_->MapDevice(*hit, Keys(chain), {});
  }

  HostRuntime device_;  // the worker's
  HostRuntime* daemon_device_ = nullptr;
  std::unique_ptr<client::Client> client_;  // of MapOfAGroup
};

TEST_F(DeviceMemoryTest, ADeviceThatIsNamedMustOpen) {
  UseDevice([] { return absl::UnavailableError("no such thing"); });
  EXPECT_THAT(daemon_.TryStart(),
              StatusIs(StatusCode::kUnavailable, "hbm.device: 0 cannot be used: no such thing"));
  daemon_.options().hbm.device = "auto";
  Start();
  EXPECT_FALSE(wire_->Status()->tiers(2).present());
  const auto client = DeviceClient(&device_);
  const auto chain = Document();
  Push(chain);
  EXPECT_THAT(Map(*client, chain), StatusIs(StatusCode::kUnimplemented, "no device memory"));
  EXPECT_EQ(Fallbacks("absent"), 1);
  EXPECT_EQ(client->stats().device_fallbacks, 4);
  ExpectPushed(Fetch(*client, chain), chain);
}

TEST_F(DeviceMemoryTest, MoreThanTheDeviceHasIsRefusedAtTheStart) {
  UseDevice([]() -> absl::StatusOr<std::unique_ptr<DeviceRuntime>> {
    return std::make_unique<HostRuntime>(HostRuntimeOptions{.memory_bytes = 4 * kMiB});
  });
  EXPECT_THAT(daemon_.TryStart(),
              StatusIs(StatusCode::kResourceExhausted, "hbm.capacity is 8388608"));
}

TEST(ChooseDeviceTest, ByIndexByUuidOrTheFirst) {
  std::vector<DeviceInfo> devices(2);
  devices[1].uuid.bytes[0] = 7;
  EXPECT_EQ(*ChooseDevice("auto", devices), devices[0].uuid);
  EXPECT_EQ(*ChooseDevice("1", devices), devices[1].uuid);
  EXPECT_EQ(*ChooseDevice(devices[1].uuid.ToString(), devices), devices[1].uuid);
  EXPECT_THAT(ChooseDevice("2", devices), StatusIs(StatusCode::kNotFound, "2 GPUs"));
  EXPECT_THAT(ChooseDevice("GPU-x", devices), StatusIs(StatusCode::kNotFound, "GPU-07"));
  EXPECT_THAT(ChooseDevice("auto", {}), StatusIs(StatusCode::kNotFound, "no GPU"));
}

TEST_F(DeviceMemoryTest, AnotherGpuIsNoPlaceToShare) {
  StartWithDevice();
  HostRuntimeOptions options;
  options.uuid.bytes[15] = 9;
  HostRuntime other(options);
  const auto client = DeviceClient(&other);
  const auto chain = Document();
  Push(chain);
  EXPECT_THAT(Map(*client, chain), StatusIs(StatusCode::kFailedPrecondition, "GPU-"));
  EXPECT_EQ(Fallbacks("other_device"), 1);
  EXPECT_THAT(Map(*DeviceClient(nullptr), chain),
              StatusIs(StatusCode::kFailedPrecondition, "ClientOptions.device"));
}

TEST_F(DeviceMemoryTest, WhatDoesNotFitIsReadFromHostMemory) {
  StartWithDevice(/*capacity_bytes=*/2 * kMiB);  // four pages
  const auto chain = Document(6);
  Push(chain);
  const auto client = DeviceClient(&device_);
  DeviceReader reader(device_);
  auto pages = Map(*client, chain);
  PAGODA_ASSERT_OK(pages);
  EXPECT_EQ((*pages)->there_count(), 4u);
  EXPECT_THAT((*pages)->Page(5), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_TRUE(reader.SeesAll(**pages, chain));
  EXPECT_EQ(Fallbacks("room"), 2);
  EXPECT_EQ(client->stats().device_fallbacks, 2);
  ExpectPushed(Fetch(*client, chain), chain);
}

TEST_F(DeviceMemoryTest, ALostDeviceIsAnAnswer) {
  StartWithDevice();
  const auto chain = Document(2);
  const auto later = Document(2, 2);
  Push(chain);
  Push(later);
  const auto client = DeviceClient(&device_);
  auto pages = Map(*client, chain);
  PAGODA_ASSERT_OK(pages);
  PAGODA_ASSERT_OK((*pages)->AwaitLayer(3, kLong));
  EXPECT_TRUE((*pages)->StillValid());
  daemon_device_->Lose("a test");
  const auto after = Map(*client, later);
  PAGODA_ASSERT_OK(after);
  EXPECT_EQ((*after)->there_count(), 0u);
  EXPECT_THAT((*after)->Page(0), StatusIs(StatusCode::kUnavailable));
  EXPECT_EQ(Fallbacks("lost"), 2);
  EXPECT_EQ((*Map(*client, chain))->there_count(), 0u);  // what was there is no use, either
  EXPECT_EQ(Metric("pagoda_hbm_lost"), 1);
  const absl::Time end = absl::Now() + kLong;
  while ((*pages)->StillValid() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE((*pages)->StillValid());
  ExpectPushed(Fetch(*client, chain), chain);
  // And for who comes now.
  EXPECT_THAT(Map(*DeviceClient(&device_), chain), StatusIs(StatusCode::kUnavailable));
}

TEST_F(DeviceMemoryTest, WhatCannotBeExportedIsReadFromHostMemory) {
  StartWithDevice();
  const auto chain = Document(2);
  Push(chain);
  daemon_device_->FailNext(HostCall::kExport, absl::UnimplementedError("not in this container"));
  const auto client = DeviceClient(&device_);
  auto pages = Map(*client, chain);
  PAGODA_ASSERT_OK(pages);
  EXPECT_THAT((*pages)->Page(0), StatusIs(StatusCode::kUnimplemented, "container"));
  PAGODA_EXPECT_OK((*pages)->Page(1));
  EXPECT_EQ(Fallbacks("export"), 1);
  // And on this side.
  device_.FailNext(HostCall::kImport, absl::UnimplementedError("another driver"));
  const auto other = DeviceClient(&device_);
  EXPECT_THAT(Map(*other, chain), StatusIs(StatusCode::kUnimplemented, "another driver"));
  EXPECT_FALSE(Map(*other, chain).ok());
  absl::SleepFor(absl::Milliseconds(120));  // it is not tried again
  EXPECT_THAT(Map(*other, chain), StatusIs(StatusCode::kUnimplemented, "another driver"));
  ExpectPushed(Fetch(*other, chain), chain);
}

// One slow answer or a refusal that may pass does not turn device memory off.
TEST_F(DeviceMemoryTest, WhatFailedOnceIsTriedAgain) {
  StartWithDevice();
  const auto chain = Document(2);
  Push(chain);
  daemon_device_->FailNext(HostCall::kRegister, absl::ResourceExhaustedError("memlock"));
  const auto client = DeviceClient(&device_);
  EXPECT_THAT(Map(*client, chain), StatusIs(StatusCode::kResourceExhausted, "memlock"));
  const absl::Time end = absl::Now() + kLong;
  while (!Map(*client, chain).ok() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
  // A lease that is over before the answer comes.
  auto hit = Find(*client, chain);
  PAGODA_ASSERT_OK(hit);
  absl::StatusOr<std::unique_ptr<client::DevicePages>> pages = absl::AbortedError("not asked");
  while (absl::IsAborted(pages.status())) {
    hit->lease_until = SystemClock().Monotonic() + absl::Microseconds(20);
    pages = client->MapDevice(*hit, Keys(chain), {});
  }
  PAGODA_ASSERT_OK(pages);
  EXPECT_EQ((*pages)->there_count(), 2u);
  EXPECT_EQ((*Map(*client, chain))->there_count(), 2u);
}

// A lease that was granted anew for other pages holds those alone.
TEST_F(DeviceMemoryTest, WhatALeaseNamesNoMoreIsNotHeld) {
  StartWithDevice();
  const auto before = Document(4, 1);
  const auto after = Document(2, 2);
  Push(before);
  Push(after);
  const auto client = DeviceClient(&device_);
  client::LookupQuery query;
  query.request_id.bytes[0] = 1;
  const auto scope = client->FindScope({ScopeKind::kPrivate, ""})->id;
  client::LeaseId lease;
  for (const auto& chain : {before, after}) {
    query.chains = {{scope, Keys(chain)}};
    const auto hit = client->Lookup(query);
    PAGODA_ASSERT_OK(hit);
    lease = hit->lease;
    const auto pages = client->MapDevice(*hit, Keys(chain), {});
    PAGODA_ASSERT_OK(pages);
    EXPECT_EQ((*pages)->there_count(), chain.size());
  }
  EvictAll();
  EXPECT_TRUE(HbmBytesBecome(2 * 512 * 1024));
  client->Release(lease);
}

TEST_F(DeviceMemoryTest, WithoutSharedMemoryItIsNoUse) {
  UseDevice([] { return std::make_unique<HostRuntime>(); });
  daemon_.options().shm.socket = "/" + std::string(200, 'x');
  EXPECT_THAT(daemon_.TryStart(), StatusIs(StatusCode::kInvalidArgument, "hbm.device: 0"));
  daemon_.options().hbm.device = "auto";
  Start();
  EXPECT_FALSE(wire_->Status()->tiers(2).present());
}

// A daemon that goes leaves no stream waiting.
TEST_F(DeviceMemoryTest, PagesOfADaemonThatIsGoneAreNotWaitedFor) {
  StartWithDevice();
  const auto chain = Document(2);
  Push(chain);
  const auto client = DeviceClient(&device_);
  DeviceReader reader(device_);
  auto pages = Map(*client, chain);
  PAGODA_ASSERT_OK(pages);
  PAGODA_EXPECT_OK(daemon_.Stop());
  // What had come may have come for good; what had not is not.
  const bool seen = reader.SeesAll(**pages, chain);
  EXPECT_EQ(seen, (*pages)->StillValid());
  EXPECT_TRUE(reader.Drain());
  PAGODA_EXPECT_OK((*pages)->ReleaseAfter(reader.stream()));
  EXPECT_THAT(Map(*client, chain), ::testing::Not(IsOk()));
}

TEST_F(DeviceMemoryTest, OnlyWhoMayPushMapsDeviceMemory) {
  StartWithTokens(/*scope=*/0);
  const auto chain = Document(2);
  Push(chain);
  const auto owner = DeviceClient(&device_, 256, "acme-token-000001");
  EXPECT_EQ((*Map(*owner, chain))->there_count(), 2u);
  const auto viewer = DeviceClient(&device_, 256, "view-token-000001");
  const auto pages = Map(*viewer, chain);
  PAGODA_ASSERT_OK(pages);
  EXPECT_THAT((*pages)->Page(0), StatusIs(StatusCode::kPermissionDenied));
  EXPECT_EQ(Fallbacks("scope"), 2);
  ExpectPushed(Fetch(*viewer, chain), chain);
}

// Who maps a chunk could alter what others read.
TEST_F(DeviceMemoryTest, SharedScopesAreNotLent) {
  const auto pages = MapOfAGroup();
  EXPECT_EQ(pages->there_count(), 0u);
  EXPECT_THAT(pages->Page(0), StatusIs(StatusCode::kPermissionDenied, "hbm.shared_scopes"));
  EXPECT_EQ(Fallbacks("scope"), 2);
}

TEST_F(DeviceMemoryTest, SharedScopesAreLentWhereTheSettingsSaySo) {
  daemon_.options().hbm.shared_scopes = true;
  EXPECT_EQ(MapOfAGroup()->there_count(), 2u);
}

// Removed or replaced in host memory: gone from the device. Out of its lease: no answer.
TEST_F(DeviceMemoryTest, PagesLeaveWithThoseInHostMemory) {
  StartWithDevice();
  const auto chain = Document();
  Push(chain);
  const auto client = DeviceClient(&device_);
  const auto hit = Find(*client, chain);
  PAGODA_ASSERT_OK(client->MapDevice(*hit, Keys(chain), {}));
  client->Release(hit->lease);
  EXPECT_THAT(client->MapDevice(*hit, Keys(chain), {}), StatusIs(StatusCode::kNotFound));
  EXPECT_EQ(wire_->Status()->tiers(2).pages(), 4u);
  v1::EvictRequest request;
  request.mutable_filter()->set_key(KeysOf(chain)[3]);
  v1::EvictResponse evicted;
  ASSERT_TRUE(wire_->admin().Evict(wire_->Context().get(), request, &evicted).ok());
  EXPECT_EQ(evicted.pages(), 1u);
  EXPECT_EQ(wire_->Status()->tiers(2).pages(), 3u);
  LeaveOnSsdOnly();
  EXPECT_EQ(wire_->Status()->tiers(2).pages(), 0u);
  EXPECT_TRUE(HbmBytesBecome(0));
}

// What was sent before the reply that is wanted is passed over.
shm::Reply ReplyTo(const UniqueFd& fd, shm::Op op) {
  shm::Reply reply;
  for (int i = 0; i < 20; ++i) {
    const absl::StatusOr<Packet> packet = ReceivePacket(fd.get(), shm::kPacketBytesMax, kLong);
    if (!packet.ok() || packet->bytes.size() < sizeof(reply)) break;
    std::memcpy(&reply, packet->bytes.data(), sizeof(reply));
    if (reply.op == op) return reply;
  }
  ADD_FAILURE() << "no reply";
  return reply;
}

TEST_F(DeviceMemoryTest, HostilePacketsDoNoHarm) {
  StartWithDevice();
  const auto chain = Document();
  Push(chain);
  const auto lookup = wire_->Lookup(wire_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  const auto honest = DeviceClient(&device_);
  auto pages = Map(*honest, chain);
  PAGODA_ASSERT_OK(pages);
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    const UniqueFd fd = Socket(wire_->session_id());
    shm::Request request = LocateRequest(lookup->lease_id(), 0, 4);
    request.op = shm::Op::kPlace;
    if (round % 4 == 0) {  // before kDevice
      Send(fd, request);
      EXPECT_EQ(CodeOf(ReplyTo(fd, shm::Op::kPlace)), StatusCode::kFailedPrecondition);
      continue;
    }
    shm::Request hello;
    hello.op = shm::Op::kDevice;
    hello.lease_id = device_.info().uuid.bytes;
    if (round % 4 == 1) hello.lease_id[random() % 16] ^= 1;
    Send(fd, hello);
    const absl::StatusOr<Packet> flags = ReceivePacket(fd.get(), shm::kPacketBytesMax, kLong);
    PAGODA_ASSERT_OK(flags);
    if (round % 4 == 1) {
      EXPECT_FALSE(flags->fd.valid());
      continue;
    }
    EXPECT_TRUE(IsExportPacket(flags->bytes));
    auto page = FlagPage::Map(UniqueFd(::fcntl(flags->fd.get(), F_DUPFD_CLOEXEC, 0)));
    PAGODA_ASSERT_OK(page);
    for (int i = 0; i < 8; ++i) StoreFlag(page->word(i), random() % 2 == 0 ? ~0ull : random());
    EXPECT_EQ(CodeOf(ReplyTo(fd, shm::Op::kDevice)), StatusCode::kOk);
    Send(fd, hello);  // twice
    EXPECT_EQ(CodeOf(ReplyTo(fd, shm::Op::kDevice)), StatusCode::kFailedPrecondition);
    if (round % 8 == 2) request.lease_id.fill(7);
    if (round % 8 == 3) request.page_begin = static_cast<uint32_t>(random() | 4);
    if (round % 8 == 6) request.page_count = static_cast<uint32_t>(random() | 8);
    Send(fd, request);
    const StatusCode code = CodeOf(ReplyTo(fd, shm::Op::kPlace));
    EXPECT_EQ(code == StatusCode::kOk, round % 8 == 7) << "round " << round;
    if (round % 3 == 0) Send(fd, request);  // and hangs up
  }
  DeviceReader reader(device_);
  EXPECT_TRUE(reader.SeesAll(**pages, chain));
}

}  // namespace
}  // namespace pagoda
