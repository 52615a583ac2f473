// Goal: a page on its way keeps its memory until the device is done with it, layers can be waited
// for one by one, and every fault and limit is a status. Method: the host as a device, stepped by
// hand under many seeds; pages that say so when they are freed, so that the device finds a copy
// under them; the wrong use once, which is found.
#include "storage/device/tier_mover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/device_pool.h"
#include "storage/device/host_runtime.h"
#include "storage/device/testing/host_arena.h"

namespace pagoda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kLayerBytes = 4096;
constexpr int kLayers = 4;
constexpr int64_t kPageBytes = kLayers * kLayerBytes;
const ScopeId kScope = ScopeIdOf({ScopeKind::kPublic, ""});

struct Device {
  explicit Device(uint64_t seed = 1, bool abort_on_misuse = true, MoverOptions options = {})
      : runtime({.schedule = HostRuntimeOptions::Schedule::kManual,
                 .seed = seed,
                 .abort_on_misuse = abort_on_misuse}) {
    options.own_thread = false;
    registration = *runtime.RegisterHost(host.data(), host.bytes());
    pool = *DevicePool::Create(
        runtime, {.capacity_bytes = int64_t{2} << 20, .chunk_bytes = int64_t{2} << 20});
    mover = *TierMover::Create(runtime, clock, options);
  }
  // A page in device memory, and one in host memory that tells when it is freed.
  std::shared_ptr<DeviceSlab> DevicePage() {
    return std::make_shared<DeviceSlab>(*pool->Allocate(kScope, kPageBytes));
  }
  std::shared_ptr<std::byte> HostPage(int index) {
    std::byte* data = host.data() + index * kPageBytes;
    runtime.NoteOwned(data, kPageBytes);
    return {data, [this](std::byte* page) { runtime.NoteFreed(page, kPageBytes); }};
  }
  Move Up(const std::shared_ptr<std::byte>& from, const std::shared_ptr<DeviceSlab>& to) {
    return Make(CopyDirection::kHostToDevice, to->data(), from.get(), {from, to});
  }
  Move Down(const std::shared_ptr<DeviceSlab>& from, const std::shared_ptr<std::byte>& to) {
    return Make(CopyDirection::kDeviceToHost, to.get(), from->data(), {from, to});
  }
  Move Make(CopyDirection direction, std::byte* target, const std::byte* source,
            std::vector<std::shared_ptr<const void>> keep) {
    Move move;
    move.direction = direction;
    for (int64_t at = 0; at < kPageBytes; at += kLayerBytes) {
      move.layers.push_back(
          {{target + at, source + at, kLayerBytes / 2},
           {target + at + kLayerBytes / 2, source + at + kLayerBytes / 2, kLayerBytes / 2}});
    }
    move.keep = std::move(keep);
    move.done = [this](const absl::Status& status) { results.push_back(status); };
    return move;
  }
  void Finish() {
    runtime.RunUntilIdle();
    EXPECT_EQ(mover->Poll(), 0);
  }

  FakeClock clock;
  HostArena host{16 * kPageBytes};
  HostRuntime runtime;
  std::unique_ptr<HostRegistration> registration;
  std::shared_ptr<DevicePool> pool;
  std::vector<absl::Status> results;
  std::unique_ptr<TierMover> mover;
};

TEST(TierMoverTest, LayersCanBeWaitedForUnderEverySeed) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Device d(seed);
    auto page = d.HostPage(0);
    for (int layer = 0; layer < kLayers; ++layer) {
      d.host.Fill(layer * kLayerBytes, kLayerBytes, static_cast<uint8_t>(layer + 1));
    }
    auto slab = d.DevicePage();
    Move move = d.Up(page, slab);
    uint64_t* word = d.host.words() + 8 * kPageBytes / 8;
    move.progress = word;
    auto moving = d.mover->Submit(std::move(move));
    PAGODA_ASSERT_OK(moving);
    // An engine of this process waits by event, one of another process by flag word.
    auto consumer = *d.runtime.NewStream();
    auto event = *d.runtime.NewEvent();
    for (int layer = 0; layer < kLayers; ++layer) {
      if (seed % 2 == 0) {
        PAGODA_ASSERT_OK((*moving)->WaitLayer(*consumer, layer));
      } else {
        PAGODA_ASSERT_OK(consumer->WaitFlag(word, layer + 1));
      }
      PAGODA_ASSERT_OK(consumer->CopyBatch(CopyDirection::kDeviceToHost,
                                           {{d.host.data() + kPageBytes + layer * kLayerBytes,
                                             slab->data() + layer * kLayerBytes, kLayerBytes}}));
    }
    PAGODA_ASSERT_OK(consumer->Record(*event));
    PAGODA_ASSERT_OK((*moving)->AwaitLayer(0, absl::Seconds(60)));
    EXPECT_GE(LoadFlag(word), 0u);
    PAGODA_ASSERT_OK(d.runtime.Await(*event, absl::Seconds(60)));
    EXPECT_EQ(std::memcmp(d.host.data(), d.host.data() + kPageBytes, kPageBytes), 0);
    d.Finish();
    EXPECT_EQ(LoadFlag(word), static_cast<uint64_t>(kLayers));
    EXPECT_EQ(d.results, std::vector<absl::Status>{absl::OkStatus()});
    PAGODA_EXPECT_OK((*moving)->WaitLayer(*consumer, kLayers - 1));  // it has long come
    EXPECT_THAT((*moving)->WaitLayer(*consumer, kLayers),
                StatusIs(absl::StatusCode::kInvalidArgument));
    d.runtime.RunUntilIdle();
  }
}

TEST(TierMoverTest, KeepsBothEndsUntilTheCopyIsDone) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Device d(seed);
    auto slab = d.DevicePage();
    auto page = d.HostPage(0);
    PAGODA_ASSERT_OK(d.mover->Submit(d.Up(page, slab)));
    slab.reset();
    page.reset();
    for (int i = 0; d.runtime.Step(); ++i) {
      if (i % 3 == 0) d.mover->Poll();
    }
    EXPECT_EQ(d.mover->Poll(), 0);
    EXPECT_EQ(d.pool->usage().used_bytes, 0);
    EXPECT_EQ(d.mover->stats().bytes_by_direction[0], kPageBytes);
  }
}

// An engine computes a page; the demotion waits for it, and frees the slab behind itself.
TEST(TierMoverTest, ADemotionWaitsForWhoWritesThePage) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Device d(seed);
    auto slab = d.DevicePage();
    auto page = d.HostPage(0);
    d.host.Fill(2 * kPageBytes, kPageBytes, 0x5a);
    auto engine = *d.runtime.NewStream();
    auto complete = *d.runtime.NewEvent();
    PAGODA_ASSERT_OK(
        engine->CopyBatch(CopyDirection::kHostToDevice,
                          {{slab->data(), d.host.data() + 2 * kPageBytes, kPageBytes}}));
    PAGODA_ASSERT_OK(engine->Record(*complete));
    Move move = d.Down(slab, page);
    move.after = complete.get();
    PAGODA_ASSERT_OK(d.mover->Submit(std::move(move)));
    slab.reset();
    d.Finish();
    EXPECT_TRUE(d.host.Is(0, kPageBytes, 0x5a));
    EXPECT_EQ(d.pool->usage().used_bytes, 0);
  }
}

TEST(TierMoverTest, APageFreedBeforeItsCopyFinishedIsFound) {
  Device d(1, /*abort_on_misuse=*/false);
  auto slab = d.DevicePage();
  auto page = d.HostPage(0);
  Move wrong = d.Up(page, slab);
  wrong.keep.clear();
  PAGODA_ASSERT_OK(d.mover->Submit(std::move(wrong)));
  slab.reset();
  EXPECT_THAT(d.runtime.misuses(), ::testing::SizeIs(kLayers));
  EXPECT_THAT(d.runtime.misuses()[0], HasSubstr("noted as free while an unfinished h2d"));
  page.reset();
  EXPECT_THAT(d.runtime.misuses(), ::testing::SizeIs(2 * kLayers));
  d.Finish();
}

TEST(TierMoverTest, ADemotionThatWaitsForNobodyIsFound) {
  Device d(1, /*abort_on_misuse=*/false);
  auto slab = d.DevicePage();
  auto engine = *d.runtime.NewStream();
  PAGODA_ASSERT_OK(engine->Clear(slab->data(), kPageBytes));
  PAGODA_ASSERT_OK(d.mover->Submit(d.Down(slab, d.HostPage(0))));
  EXPECT_THAT(d.runtime.misuses()[0], HasSubstr("nothing orders them"));
  d.Finish();
}

TEST(TierMoverTest, LateAndCancelledMovesKeepTheirMemory) {
  for (const bool cancel : {false, true}) {
    Device d;
    auto slab = d.DevicePage();
    Move move = d.Up(d.HostPage(0), slab);
    move.timeout = absl::Seconds(1);
    auto moving = *d.mover->Submit(std::move(move));
    slab.reset();
    if (cancel) {
      d.mover->Cancel(*moving);
    } else {
      d.clock.Advance(absl::Milliseconds(999));
      d.mover->Poll();
      EXPECT_THAT(d.results, IsEmpty());
      d.clock.Advance(absl::Milliseconds(1));
    }
    EXPECT_EQ(d.mover->Poll(), 1);
    ASSERT_EQ(d.results.size(), 1u);
    EXPECT_EQ(d.results[0].code(),
              cancel ? absl::StatusCode::kCancelled : absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(d.pool->usage().used_bytes, kPageBytes);
    auto consumer = *d.runtime.NewStream();
    EXPECT_FALSE(moving->WaitLayer(*consumer, 0).ok());
    d.Finish();
    EXPECT_EQ(d.pool->usage().used_bytes, 0);
    EXPECT_EQ(d.results.size(), 1u);
    EXPECT_EQ(d.mover->stats().timed_out_count, cancel ? 0 : 1);
  }
}

TEST(TierMoverTest, FullIsRefused) {
  Device d(1, true, {.bytes_in_flight_max = 2 * kPageBytes, .moves_in_flight_max = 3});
  auto slab = d.DevicePage();
  auto other = d.DevicePage();
  auto third = d.DevicePage();
  PAGODA_ASSERT_OK(d.mover->Submit(d.Up(d.HostPage(0), slab)));
  PAGODA_ASSERT_OK(d.mover->Submit(d.Up(d.HostPage(1), other)));
  EXPECT_THAT(d.mover->Submit(d.Up(d.HostPage(2), third)),
              StatusIs(absl::StatusCode::kResourceExhausted, "32768 of 32768 bytes"));
  d.Finish();
  PAGODA_EXPECT_OK(d.mover->Submit(d.Up(d.HostPage(2), third)));
  d.Finish();
  EXPECT_EQ(d.mover->stats().refused_count, 1);
  EXPECT_EQ(d.mover->stats().in_flight_bytes, 0);
  EXPECT_THAT(d.mover->Submit(Move{}), StatusIs(absl::StatusCode::kInvalidArgument));
  Move within = d.Up(d.HostPage(0), slab);
  within.direction = CopyDirection::kWithinDevice;
  EXPECT_THAT(d.mover->Submit(within), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(TierMover::Create(d.runtime, d.clock, {.layers_max = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// The device refuses at each call of a submission in turn: the caller is told, and what was begun
// keeps its memory until it is done, also when the device refuses to say when.
TEST(TierMoverTest, ARefusalHalfWayKeepsWhatWasBegun) {
  for (const HostCall call : {HostCall::kCopy, HostCall::kRecord, HostCall::kFlag}) {
    for (int layer = 0; layer < kLayers; ++layer) {
      Device d;
      auto slab = d.DevicePage();
      Move move = d.Up(d.HostPage(0), slab);
      move.progress = d.host.words() + 8 * kPageBytes / 8;
      d.runtime.FailNext(call, absl::InternalError("injected"), layer);
      EXPECT_THAT(d.mover->Submit(std::move(move)),
                  StatusIs(absl::StatusCode::kInternal, "injected"));
      slab.reset();
      d.runtime.FailNext(HostCall::kRecord, absl::InternalError("again"));
      EXPECT_EQ(d.mover->Poll(), 1);
      EXPECT_EQ(d.pool->usage().used_bytes, kPageBytes);
      EXPECT_EQ(d.mover->Poll(), 1);  // this one leaves an event behind the copies
      d.Finish();
      EXPECT_EQ(d.pool->usage().used_bytes, 0);
      EXPECT_THAT(d.results, IsEmpty());
      EXPECT_EQ(d.mover->stats().failed_count, 1);
    }
  }
}

TEST(TierMoverTest, ALostDeviceEndsEverything) {
  for (int64_t pieces = 0; pieces < 4 * kLayers; ++pieces) {
    Device d(static_cast<uint64_t>(pieces + 1));
    auto slab = d.DevicePage();
    auto other = d.DevicePage();
    d.runtime.FailPieceAfter(pieces);
    PAGODA_ASSERT_OK(d.mover->Submit(d.Up(d.HostPage(0), slab)));
    auto down = *d.mover->Submit(d.Down(other, d.HostPage(1)));
    slab.reset();
    other.reset();
    d.Finish();
    ASSERT_EQ(d.results.size(), 2u);
    for (const absl::Status& result : d.results) {
      EXPECT_EQ(result.code(), absl::StatusCode::kUnavailable);
    }
    EXPECT_EQ(d.pool->usage().used_bytes, 0);
    EXPECT_THAT(down->AwaitLayer(0, absl::Seconds(1)), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(d.mover->Submit(d.Up(d.HostPage(2), d.DevicePage())),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(d.mover->Poll(), 0);
  }
}

TEST(TierMoverTest, WhatDoesNotEndIsLeakedNotFreed) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        auto* d = new Device(1, true, {.drain_timeout = absl::Milliseconds(1)});
        auto slab = d->DevicePage();
        auto stream = *d->runtime.NewStream();
        auto never = *d->runtime.NewEvent();
        (void)stream->WaitFlag(d->host.words(), 1);
        (void)stream->Record(*never);
        Move move = d->Up(d->HostPage(1), slab);
        move.after = never.get();
        const bool taken = d->mover->Submit(std::move(move)).ok();
        slab.reset();
        d->mover.reset();
        _exit(taken && d->pool->usage().used_bytes == kPageBytes ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "mover_abandoned");
}

}  // namespace
}  // namespace pagoda
