// Goal: pages go down to host memory and come up again with the bytes they had, layer by layer, on
// whatever device is linked. Method: several threads, each with its own pages, against one pool and
// one mover with its thread; a compute stream that waits for each layer before it reads it.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/device_pool.h"
#include "storage/device/testing/host_arena.h"
#include "storage/device/testing/test_device.h"
#include "storage/device/tier_mover.h"

namespace pagoda {
namespace {

constexpr int kThreads = 3;
constexpr int kRounds = 8;
constexpr int kLayers = 16;
constexpr int64_t kLayerBytes = 64 << 10;
constexpr int64_t kPageBytes = kLayers * kLayerBytes;
constexpr absl::Duration kLong = absl::Seconds(60);
const ScopeId kScope = ScopeIdOf({ScopeKind::kPublic, ""});

class TierMoverDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestDeviceCount() == 0) GTEST_SKIP() << "no GPU";
    device_ = *OpenTestDevice();
    registration_ = *device_->RegisterHost(host_.data(), host_.bytes());
    pool_ = *DevicePool::Create(
        *device_, {.capacity_bytes = int64_t{16} << 20, .chunk_bytes = int64_t{4} << 20});
    mover_ = *TierMover::Create(*device_, SystemClock(), {});
  }
  static Move Between(CopyDirection direction, std::byte* target, const std::byte* source) {
    Move move;
    move.direction = direction;
    for (int64_t at = 0; at < kPageBytes; at += kLayerBytes) {
      move.layers.push_back({{target + at, source + at, kLayerBytes}});
    }
    return move;
  }
  // Waits for a move's end.
  absl::Status Finish(Move move) {
    absl::Notification ended;
    absl::Status result;
    move.done = [&](const absl::Status& status) {
      result = status;
      ended.Notify();
    };
    PAGODA_RETURN_IF_ERROR(mover_->Submit(std::move(move)).status());
    if (!ended.WaitForNotificationWithTimeout(kLong)) return absl::DeadlineExceededError("no end");
    return result;
  }

  HostArena host_{(3 * kThreads + 1) * kPageBytes};
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<HostRegistration> registration_;
  std::shared_ptr<DevicePool> pool_;
  std::unique_ptr<TierMover> mover_;
};

TEST_F(TierMoverDeviceTest, DownAndUpAgainByManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      std::byte* source = host_.data() + 3 * t * kPageBytes;
      std::byte* target = source + kPageBytes;
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int round = 0; round < kRounds; ++round) {
        for (int64_t i = 0; i < kPageBytes; i += 8) {
          const uint64_t word = random();
          std::memcpy(source + i, &word, 8);
        }
        auto slab = std::make_shared<DeviceSlab>(*pool_->Allocate(kScope, kPageBytes));
        std::byte* data = slab->data();
        Move up = Between(CopyDirection::kHostToDevice, data, source);
        up.keep = {slab};
        PAGODA_ASSERT_OK(Finish(std::move(up)));
        Move down = Between(CopyDirection::kDeviceToHost, target, data);
        down.keep = {std::move(slab)};
        PAGODA_ASSERT_OK(Finish(std::move(down)));
        ASSERT_EQ(std::memcmp(source, target, kPageBytes), 0) << "thread " << t;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  mover_.reset();
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  PAGODA_EXPECT_OK(pool_->CheckAccounting());
}

TEST_F(TierMoverDeviceTest, AComputeStreamReadsLayersAsTheyCome) {
  auto compute = *device_->NewStream();
  auto event = *device_->NewEvent();
  uint64_t* word = host_.words() + 3 * kThreads * kPageBytes / 8;
  for (uint64_t round = 1; round <= 4; ++round) {
    auto slab = std::make_shared<DeviceSlab>(*pool_->Allocate(kScope, kPageBytes));
    for (int layer = 0; layer < kLayers; ++layer) {
      host_.Fill(layer * kLayerBytes, kLayerBytes, static_cast<uint8_t>(16 * round + layer));
    }
    Move up = Between(CopyDirection::kHostToDevice, slab->data(), host_.data());
    up.keep = {slab};
    up.progress = word;
    up.progress_base = round * kLayers;
    auto moving = mover_->Submit(std::move(up));
    PAGODA_ASSERT_OK(moving);
    for (int layer = 0; layer < kLayers; ++layer) {
      if (layer % 2 == 0) {
        PAGODA_ASSERT_OK((*moving)->WaitLayer(*compute, layer));
      } else {
        PAGODA_ASSERT_OK(compute->WaitFlag(word, round * kLayers + layer + 1));
      }
      const int64_t at = layer * kLayerBytes;
      PAGODA_ASSERT_OK(
          compute->CopyBatch(CopyDirection::kDeviceToHost,
                             {{host_.data() + kPageBytes + at, slab->data() + at, kLayerBytes}}));
    }
    PAGODA_ASSERT_OK(compute->Record(*event));
    PAGODA_ASSERT_OK(device_->Await(*event, kLong));
    EXPECT_EQ(std::memcmp(host_.data(), host_.data() + kPageBytes, kPageBytes), 0);
    PAGODA_ASSERT_OK((*moving)->AwaitLayer(kLayers - 1, kLong));
  }
}

}  // namespace
}  // namespace pagoda
