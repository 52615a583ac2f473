// Goal: pages travel from a daemon's GPU into a worker's own memory on another one, byte for byte,
// and whoever dies in the middle leaves nothing behind and nobody waiting. Method: a real daemon
// and the real client on whatever two devices and transport are linked; a second process as either
// end, killed while a shut gate holds the transfer between its beginning and its end.
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "storage/device/testing/test_device.h"
#include "storage/device/testing/test_transport.h"
#include "tests/integration/peer_fixture.h"

namespace pagoda {
namespace {

constexpr int64_t kDocumentBytes = int64_t{4} * 512 * 1024;  // of four pages, in device memory

class PeerFetchDeviceTest : public PeerTest {
 protected:
  void SetUp() override {
    if (TestDeviceCount() < 2) GTEST_SKIP() << "fewer than two GPUs";
    device_ = *OpenTestDevice(1);
    if (const auto probe = OpenTestTransport(*device_); !probe.ok()) {
      GTEST_SKIP() << probe.status();
    }
  }
  void StartDaemon() {
    UseDevice([] { return OpenTestDevice(0); });
    UseLinks(OpenTestTransport);
    Start();
  }
  std::unique_ptr<client::Client> Client(const std::string& target) {
    return Connected(PeerClientOptions(target, device_.get(), OpenTestTransport));
  }

  std::unique_ptr<DeviceRuntime> device_;
};

TEST_F(PeerFetchDeviceTest, PagesArriveByteForByte) {
  StartDaemon();
  std::vector<std::vector<TestPage>> documents;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    documents.push_back(Document(4, seed));
    Push(documents.back());
  }
  const auto client = Client(daemon_.server().address());
  PeerLanding landing(*device_);
  for (int round = 0; round < 2; ++round) {
    for (const auto& chain : documents) {
      ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
      landing.Forget();
    }
  }
  const client::ClientStats stats = client->stats();
  EXPECT_EQ(stats.peer_pages, 24);
  EXPECT_EQ(stats.nccl.fetched_pages, 24);
  EXPECT_GE(stats.nccl.fetched_bytes, 6 * kDocumentBytes);
  EXPECT_EQ(NcclBytes(), 6 * kDocumentBytes);
  EXPECT_EQ(NcclFailures(), 0);
  EXPECT_EQ(Metric("pagoda_peer_links"), 1);
  EvictAll();
  EXPECT_TRUE(HbmBytesBecome(0));
}

TEST_F(PeerFetchDeviceTest, AWorkerThatIsKilledLeavesNothingBehind) {
  StartDaemon();
  const auto chain = Document();
  Push(chain);
  std::string said;
  const pid_t pid = StartWorker({"fetch", daemon_.server().address()}, said);
  EXPECT_EQ(said, "coming");
  EXPECT_EQ(Metric("pagoda_peer_links"), 1);
  EXPECT_EQ(HbmBytes(), kDocumentBytes);
  ::kill(pid, SIGKILL);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_TRUE(LinksBecome(0));
  EXPECT_TRUE(MetricBecomes("pagoda_leases", 0));
  EXPECT_EQ(NcclFailures(), 1);
  EvictAll();
  EXPECT_TRUE(HbmBytesBecome(0));
  // And the next one is served.
  Push(chain);
  const auto client = Client(daemon_.server().address());
  PeerLanding landing(*device_);
  ExpectAll(FetchSoon(*client, chain, landing.Targets()), chain, landing);
}

TEST_F(PeerFetchDeviceTest, ADaemonThatIsKilledIsAStatus) {
  std::string address;
  const pid_t pid = StartWorker({"serve", daemon_.folder()}, address);
  wire_ = std::make_unique<WireClient>(address);
  scope_ = wire_->Hello(spec_)->scopes(0);
  PAGODA_ASSERT_OK(wire_->OpenSession());
  const auto chain = Document();
  Push(chain);
  const auto client = Client(address);
  PeerLanding landing(*device_);
  std::atomic<bool> coming{false};
  std::thread killer([&] {
    const absl::Time end = absl::Now() + kLong;
    while (!coming && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    ::kill(pid, SIGKILL);
    ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  });
  const absl::Time end = absl::Now() + kLong;
  absl::StatusOr<Pages> pages = absl::UnavailableError("not asked");
  while (!coming && absl::Now() < end) {
    pages = FetchOnce(*client, chain, landing.Targets([&](uint32_t) { coming = true; }));
  }
  killer.join();
  EXPECT_TRUE(coming);
  EXPECT_THAT(pages, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(client->stats().peer_pages, 0);
  EXPECT_GE(client->stats().peer_fallbacks, 4);
}

}  // namespace
}  // namespace pagoda
