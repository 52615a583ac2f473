// Goal: a worker reads the pages of its lease in device memory, layer by layer as they come, in the
// daemon's process and in another one; nothing is used again before it has read it or is dead.
// Method: a real daemon and the real client on whatever device is linked; a second process that
// reads and gives back, and one that is killed with all of it in its hands.
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "storage/device/testing/test_device.h"
#include "tests/integration/device_fixture.h"

namespace pagoda {
namespace {

constexpr int64_t kDocumentBytes = int64_t{4} * 512 * 1024;  // of four pages, in device memory

class DeviceMemoryDeviceTest : public DeviceTest {
 protected:
  void SetUp() override {
    if (TestDeviceCount() == 0) GTEST_SKIP() << "no GPU";
    UseDevice([] { return OpenTestDevice(); });
    Start();
    device_ = *OpenTestDevice();
  }
  std::unique_ptr<DeviceRuntime> device_;
};

TEST_F(DeviceMemoryDeviceTest, ThisProcessReadsLayerByLayer) {
  const auto chain = Document();
  Push(chain);
  const auto client = DeviceClient(device_.get());
  DeviceReader reader(*device_);
  for (int round = 0; round < 3; ++round) {
    const auto hit = Find(*client, chain);
    PAGODA_ASSERT_OK(hit);
    auto pages = client->MapDevice(*hit, Keys(chain), {});
    PAGODA_ASSERT_OK(pages);
    ASSERT_EQ((*pages)->there_count(), chain.size());
    EXPECT_TRUE(reader.SeesAll(**pages, chain)) << "round " << round;
    PAGODA_EXPECT_OK((*pages)->AwaitLayer(3, kLong));
    PAGODA_EXPECT_OK((*pages)->ReleaseAfter(reader.stream()));
    client->Release(hit->lease);
  }
  EXPECT_EQ(client->stats().device_pages, 12);
  EXPECT_EQ(client->stats().device_fallbacks, 0);
  const auto status = wire_->Status();
  PAGODA_ASSERT_OK(status);
  EXPECT_EQ(status->tiers(2).tier(), v1::TIER_HBM);
  EXPECT_EQ(status->tiers(2).pages(), 4u);
  EXPECT_EQ(status->counters().at("pagoda_hbm_promotions_total{result=\"copied\"}"), 4u);
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"hbm\",precision=\"raw16\"}"), 4);
  EXPECT_EQ(HbmBytes(), kDocumentBytes);
  EvictAll();
  EXPECT_TRUE(HbmBytesBecome(0));
}

// More than there is room for, by several streams at once.
TEST_F(DeviceMemoryDeviceTest, ThreadsReadMoreThanThereIsRoomFor) {
  std::vector<std::vector<TestPage>> documents;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    documents.push_back(Document(4, seed));
    Push(documents.back());
  }
  const auto client = DeviceClient(device_.get());
  std::vector<std::thread> threads;
  std::atomic<int> there{0};
  for (uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      DeviceReader reader(*device_);
      for (uint32_t round = 0; round < 8; ++round) {
        const auto& chain = documents[(round * 5 + t * 3) % documents.size()];
        const auto hit = Find(*client, chain);
        PAGODA_ASSERT_OK(hit);
        auto pages = client->MapDevice(*hit, Keys(chain), {});
        if (pages.ok()) {  // else the other one is asking
          EXPECT_TRUE(reader.SeesAll(**pages, chain)) << "thread " << t << " round " << round;
          there += static_cast<int>((*pages)->there_count());
          PAGODA_EXPECT_OK((*pages)->ReleaseAfter(reader.stream()));
        }
        client->Release(hit->lease);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(there, 0);
  EXPECT_GT(Metric("pagoda_hbm_evicted_pages_total"), 0);
}

TEST_F(DeviceMemoryDeviceTest, AnotherProcessReadsAndGivesBack) {
  const auto chain = Document();
  Push(chain);
  std::string said;
  const pid_t pid = StartWorker({daemon_.server().address(), "read"}, said);
  EXPECT_EQ(said, "read");
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(HbmBytes(), kDocumentBytes);
  EvictAll();
  EXPECT_TRUE(HbmBytesBecome(0));
}

TEST_F(DeviceMemoryDeviceTest, WhatAWorkerReadsStaysUntilItIsDead) {
  const auto chain = Document();
  Push(chain);
  std::string said;
  const pid_t pid = StartWorker({daemon_.server().address(), "hold"}, said);
  EXPECT_EQ(said, "read");
  EvictAll();
  EXPECT_EQ(wire_->Status()->tiers(0).pages(), 0u);
  EXPECT_EQ(wire_->Status()->tiers(2).pages(), 0u);
  // Its lease is over and nobody finds the pages; it may still be reading them.
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(HbmBytes(), kDocumentBytes);
  ::kill(pid, SIGKILL);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_TRUE(HbmBytesBecome(0));
}

// Given back in another order than taken: the first keeps the rest.
TEST_F(DeviceMemoryDeviceTest, TheOrderOfGivingBackIsFree) {
  const auto one = Document(2, 1);
  const auto two = Document(2, 2);
  Push(one);
  Push(two);
  const auto client = DeviceClient(device_.get());
  DeviceReader reader(*device_);
  const auto hit_one = Find(*client, one);
  const auto hit_two = Find(*client, two);
  auto pages_one = *client->MapDevice(*hit_one, Keys(one), {});
  auto pages_two = *client->MapDevice(*hit_two, Keys(two), {});
  client->Release(hit_one->lease);
  client->Release(hit_two->lease);
  EvictAll();
  EXPECT_TRUE(reader.SeesAll(*pages_two, two));
  PAGODA_EXPECT_OK(pages_two->ReleaseAfter(reader.stream()));
  ASSERT_TRUE(reader.Drain());
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(HbmBytes(), kDocumentBytes);
  EXPECT_TRUE(reader.SeesAll(*pages_one, one));
  pages_one.reset();
  EXPECT_TRUE(HbmBytesBecome(0));
}

}  // namespace
}  // namespace pagoda
