// Goal: what the facade promises, on whatever device is linked. Method: each call once, with bytes
// that tell a copy that was not made or was made too early.
#include <gtest/gtest.h>

#include <thread>

#include "storage/base/testing/status_matchers.h"
#include "storage/device/runtime.h"
#include "storage/device/testing/host_arena.h"
#include "storage/device/testing/test_device.h"

namespace pagoda {
namespace {

constexpr int64_t kBytes = 1 << 20;
constexpr absl::Duration kLong = absl::Seconds(60);

class RuntimeDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestDeviceCount() == 0) GTEST_SKIP() << "no GPU";
    auto device = OpenTestDevice();
    PAGODA_ASSERT_OK(device);
    device_ = *std::move(device);
    registration_ = *device_->RegisterHost(host_.data(), host_.bytes());
    stream_ = *device_->NewStream();
    event_ = *device_->NewEvent();
  }
  absl::Status Finish(DeviceStream& stream) {
    const absl::Status status = stream.Record(*event_);
    return status.ok() ? device_->Await(*event_, kLong) : status;
  }

  HostArena host_{3 * kBytes};
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<HostRegistration> registration_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> event_;
};

TEST_F(RuntimeDeviceTest, BatchesGoUpWithinAndDown) {
  auto a = *device_->Allocate(kBytes, DeviceSharing::kPrivate);
  auto b = *device_->Allocate(kBytes, DeviceSharing::kExportable);
  for (int64_t i = 0; i < kBytes / 8; ++i) host_.words()[i] = static_cast<uint64_t>(i);
  std::vector<CopyPiece> up, within, down;
  const int64_t piece = kBytes / 16;
  for (int64_t at = 0; at < kBytes; at += piece) {
    up.push_back({a->data() + at, host_.data() + at, piece});
    within.push_back({b->data() + kBytes - piece - at, a->data() + at, piece});
    down.push_back({host_.data() + kBytes + at, b->data() + kBytes - piece - at, piece});
  }
  PAGODA_ASSERT_OK(stream_->CopyBatch(CopyDirection::kHostToDevice, up));
  PAGODA_ASSERT_OK(stream_->CopyBatch(CopyDirection::kWithinDevice, within));
  PAGODA_ASSERT_OK(stream_->CopyBatch(CopyDirection::kDeviceToHost, down));
  PAGODA_ASSERT_OK(Finish(*stream_));
  EXPECT_EQ(std::memcmp(host_.data(), host_.data() + kBytes, kBytes), 0);

  PAGODA_ASSERT_OK(stream_->Clear(b->data(), kBytes));
  PAGODA_ASSERT_OK(stream_->CopyBatch(CopyDirection::kDeviceToHost,
                                      {{host_.data() + kBytes, b->data(), kBytes}}));
  PAGODA_ASSERT_OK(Finish(*stream_));
  EXPECT_TRUE(host_.Is(kBytes, kBytes, 0));
}

// The stream that reads waits for a flag that the CPU writes, and then for one of another stream.
TEST_F(RuntimeDeviceTest, FlagsHoldAStreamUntilTheyAreWritten) {
  auto buffer = *device_->Allocate(kBytes, DeviceSharing::kPrivate);
  auto other = *device_->NewStream();
  uint64_t* words = host_.words() + 2 * kBytes / 8;
  host_.Fill(0, kBytes, 3);
  PAGODA_ASSERT_OK(stream_->WaitFlag(words, 7));
  PAGODA_ASSERT_OK(
      stream_->CopyBatch(CopyDirection::kHostToDevice, {{buffer->data(), host_.data(), kBytes}}));
  PAGODA_ASSERT_OK(stream_->WriteFlag(words + 1, 1));
  PAGODA_ASSERT_OK(other->WaitFlag(words + 1, 1));
  PAGODA_ASSERT_OK(other->CopyBatch(CopyDirection::kDeviceToHost,
                                    {{host_.data() + kBytes, buffer->data(), kBytes}}));
  PAGODA_ASSERT_OK(other->Record(*event_));
  EXPECT_THAT(device_->Await(*event_, absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(LoadFlag(words + 1), 0u);
  StoreFlag(words, 8);  // beyond the value is as good
  PAGODA_ASSERT_OK(device_->Await(*event_, kLong));
  EXPECT_EQ(LoadFlag(words + 1), 1u);
  EXPECT_TRUE(host_.Is(kBytes, kBytes, 3));
}

TEST_F(RuntimeDeviceTest, StreamsOfManyThreads) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const int64_t share = kBytes / kThreads;
      auto stream = *device_->NewStream();
      auto event = *device_->NewEvent();
      auto buffer = *device_->Allocate(share, DeviceSharing::kPrivate);
      for (uint8_t round = 1; round <= 5; ++round) {
        host_.Fill(t * share, share, round);
        PAGODA_ASSERT_OK(stream->CopyBatch(CopyDirection::kHostToDevice,
                                           {{buffer->data(), host_.data() + t * share, share}}));
        PAGODA_ASSERT_OK(
            stream->CopyBatch(CopyDirection::kDeviceToHost,
                              {{host_.data() + kBytes + t * share, buffer->data(), share}}));
        PAGODA_ASSERT_OK(stream->Record(*event));
        PAGODA_ASSERT_OK(device_->Await(*event, kLong));
        EXPECT_TRUE(host_.Is(kBytes + t * share, share, round));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RuntimeDeviceTest, SaysWhatItCannotDo) {
  EXPECT_THAT(device_->Allocate(0, DeviceSharing::kPrivate),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(device_->Allocate(int64_t{1} << 50, DeviceSharing::kPrivate),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(stream_->WaitFor(*event_), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(event_->Done(), StatusIs(absl::StatusCode::kFailedPrecondition));
  PAGODA_EXPECT_OK(device_->health());
  EXPECT_EQ(device_->info().uuid.ToString().size(), 40u);
}

}  // namespace
}  // namespace pagoda
