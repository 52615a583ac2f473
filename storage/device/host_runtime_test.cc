// Goal: the host as a device is as asynchronous as a GPU, and finds what a GPU lets pass. Method:
// steps by hand under many seeds; each misuse once, kept instead of fatal; each fault.
#include "storage/device/host_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/testing/status_matchers.h"
#include "storage/device/testing/host_arena.h"

namespace pagoda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBytes = 8192;
constexpr absl::Duration kLong = absl::Seconds(60);

struct Device {
  explicit Device(uint64_t seed = 1)
      : runtime({.schedule = HostRuntimeOptions::Schedule::kManual,
                 .seed = seed,
                 .memory_bytes = 16 * kBytes,
                 .abort_on_misuse = false}) {
    registration = *runtime.RegisterHost(host.data(), host.bytes());
    buffer = *runtime.Allocate(kBytes, DeviceSharing::kPrivate);
    event = *runtime.NewEvent();
    in = *runtime.NewStream();
    out = *runtime.NewStream();
  }
  CopyPiece Up(int64_t from, int64_t to, int64_t bytes) const {
    return {buffer->data() + to, host.data() + from, bytes};
  }
  CopyPiece Down(int64_t from, int64_t to, int64_t bytes) const {
    return {host.data() + to, buffer->data() + from, bytes};
  }

  HostArena host{4 * kBytes};
  HostRuntime runtime;
  std::unique_ptr<HostRegistration> registration;
  std::unique_ptr<DeviceBuffer> buffer;
  std::unique_ptr<DeviceEvent> event;
  std::unique_ptr<DeviceStream> in;
  std::unique_ptr<DeviceStream> out;
};

TEST(HostRuntimeTest, NothingHappensUntilAStep) {
  Device d;
  d.host.Fill(0, 64, 7);
  PAGODA_ASSERT_OK(d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, 0, 64)}));
  PAGODA_ASSERT_OK(d.in->Record(*d.event));
  EXPECT_FALSE(*d.event->Done());
  EXPECT_EQ(d.runtime.unfinished_count(), 2);
  PAGODA_ASSERT_OK(d.runtime.Await(*d.event, kLong));
  EXPECT_TRUE(*d.event->Done());
  EXPECT_EQ(d.buffer->data()[63], std::byte{7});
}

// Up, an event, down in another stream: the bytes arrive whatever stream runs first.
TEST(HostRuntimeTest, EventsAndFlagsOrderStreamsUnderEverySeed) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Device d(seed);
    d.host.Fill(0, kBytes, 9);
    std::vector<CopyPiece> pieces;
    for (int64_t at = 0; at < kBytes; at += 1024) pieces.push_back(d.Up(at, at, 1024));
    PAGODA_ASSERT_OK(d.in->CopyBatch(CopyDirection::kHostToDevice, pieces));
    uint64_t* word = d.host.words() + 3 * kBytes / 8;
    const bool by_flag = seed % 2 == 0;
    if (by_flag) {
      PAGODA_ASSERT_OK(d.in->WriteFlag(word, 5));
      PAGODA_ASSERT_OK(d.out->WaitFlag(word, 5));
    } else {
      PAGODA_ASSERT_OK(d.in->Record(*d.event));
      PAGODA_ASSERT_OK(d.out->WaitFor(*d.event));
    }
    PAGODA_ASSERT_OK(d.out->CopyBatch(CopyDirection::kDeviceToHost, {d.Down(0, kBytes, kBytes)}));
    d.runtime.RunUntilIdle();
    EXPECT_TRUE(d.host.Is(kBytes, kBytes, 9)) << "seed " << seed;
    EXPECT_EQ(LoadFlag(word), by_flag ? 5u : 0u);
    EXPECT_THAT(d.runtime.misuses(), IsEmpty()) << "seed " << seed;
  }
}

TEST(HostRuntimeTest, FindsWorkThatNothingOrders) {
  Device d;
  PAGODA_ASSERT_OK(d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, 0, 64)}));
  PAGODA_ASSERT_OK(d.out->CopyBatch(CopyDirection::kDeviceToHost, {d.Down(64, kBytes, 64)}));
  EXPECT_THAT(d.runtime.misuses(), IsEmpty());
  PAGODA_ASSERT_OK(d.out->CopyBatch(CopyDirection::kDeviceToHost, {d.Down(63, kBytes + 64, 64)}));
  EXPECT_THAT(d.runtime.misuses(), ElementsAre(HasSubstr("nothing orders them")));
  PAGODA_ASSERT_OK(
      d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, 1024, 64), d.Up(64, 1087, 64)}));
  EXPECT_THAT(d.runtime.misuses().back(), HasSubstr("pieces of one h2d"));
  d.runtime.RunUntilIdle();
}

TEST(HostRuntimeTest, FindsMemoryThatGoesUnderACopy) {
  Device d;
  PAGODA_ASSERT_OK(d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, 0, 64)}));
  d.runtime.NoteFreed(d.buffer->data() + 64, 64);
  EXPECT_THAT(d.runtime.misuses(), IsEmpty());
  d.runtime.NoteFreed(d.buffer->data(), 64);
  EXPECT_THAT(d.runtime.misuses(), ElementsAre(HasSubstr("noted as free while an unfinished h2d")));
  d.runtime.RunUntilIdle();

  EXPECT_THAT(d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, 127, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(d.runtime.misuses().back(), HasSubstr("which are free"));
  d.runtime.NoteOwned(d.buffer->data() + 64, 64);
  PAGODA_EXPECT_OK(d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, 64, 64)}));
  EXPECT_THAT(d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, 63, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument));

  d.registration.reset();
  EXPECT_THAT(d.runtime.misuses().back(), HasSubstr("host memory was unregistered"));
  PAGODA_EXPECT_OK(d.out->CopyBatch(CopyDirection::kDeviceToHost, {d.Down(1024, 0, 64)}));
  d.buffer.reset();
  EXPECT_THAT(d.runtime.misuses().back(), HasSubstr("a buffer was freed"));
  d.runtime.RunUntilIdle();  // what was misused is skipped
}

TEST(HostRuntimeTest, FindsAStreamThatGoesWithItsWork) {
  Device d;
  PAGODA_ASSERT_OK(d.in->Clear(d.buffer->data(), kBytes));
  d.in.reset();
  EXPECT_THAT(d.runtime.misuses(), ElementsAre(HasSubstr("1 unfinished")));
}

TEST(HostRuntimeTest, FindsAddressesOutside) {
  Device d;
  EXPECT_THAT(d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, kBytes - 8, 16)}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(d.in->CopyBatch(CopyDirection::kWithinDevice, {d.Up(0, 0, 16)}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(d.runtime.misuses().size(), 2u);
  // Words are the caller's to give: an error, as on a GPU.
  uint64_t word = 0;
  EXPECT_THAT(d.in->WriteFlag(&word, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(d.in->WaitFor(*d.event), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(d.event->Done(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(d.runtime.RegisterHost(d.host.data() + 8, 4096),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(HostRuntimeTest, MisuseEndsTheProcessByDefault) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        HostRuntime runtime({.schedule = HostRuntimeOptions::Schedule::kManual});
        auto buffer = *runtime.Allocate(64, DeviceSharing::kPrivate);
        auto stream = *runtime.NewStream();
        (void)stream->Clear(buffer->data(), 64);
        buffer.reset();
      },
      "a buffer was freed while an unfinished clear");
}

TEST(HostRuntimeTest, WaitsThatNobodyEndsEndTheAwait) {
  Device d;
  uint64_t* word = d.host.words();
  PAGODA_ASSERT_OK(d.in->WaitFlag(word, 1));
  PAGODA_ASSERT_OK(d.in->Record(*d.event));
  EXPECT_THAT(d.runtime.Await(*d.event, kLong), StatusIs(absl::StatusCode::kDeadlineExceeded));
  StoreFlag(word, 1);
  PAGODA_EXPECT_OK(d.runtime.Await(*d.event, kLong));
}

TEST(HostRuntimeTest, FaultsAndLoss) {
  Device d;
  d.runtime.FailNext(HostCall::kAllocate, absl::ResourceExhaustedError("injected"));
  EXPECT_THAT(d.runtime.Allocate(64, DeviceSharing::kPrivate),
              StatusIs(absl::StatusCode::kResourceExhausted, "injected"));
  EXPECT_THAT(d.runtime.Allocate(16 * kBytes, DeviceSharing::kPrivate),
              StatusIs(absl::StatusCode::kResourceExhausted, "asked 131072 bytes"));
  EXPECT_EQ(d.runtime.used_bytes(), kBytes);

  d.runtime.FailPieceAfter(1);
  PAGODA_ASSERT_OK(d.in->CopyBatch(CopyDirection::kHostToDevice, {d.Up(0, 0, 8), d.Up(8, 8, 8)}));
  PAGODA_ASSERT_OK(d.in->Record(*d.event));
  d.runtime.RunUntilIdle();
  EXPECT_THAT(d.runtime.Await(*d.event, kLong), StatusIs(absl::StatusCode::kUnavailable, "lost"));
  EXPECT_THAT(d.event->Done(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(d.in->Clear(d.buffer->data(), 8), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(d.runtime.NewStream(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(d.runtime.unfinished_count(), 0);
  EXPECT_THAT(d.runtime.misuses(), IsEmpty());
}

}  // namespace
}  // namespace pagoda
