// Goal: two ranks move pages whole, and whatever fails, at whatever moment, ends in a status on
// both sides, with the memory held until the device is done with it. Method: two host devices
// stepped by hand in seeded order, joined by sockets; each end dies, stalls or refuses at every
// step in turn.
#include "storage/device/peer_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/device_pool.h"
#include "storage/device/host_runtime.h"
#include "storage/device/host_transport.h"

namespace pagoda {
namespace {

using Phase = LinkMachine::Phase;

constexpr int64_t kBytes = int64_t{1} << 20;  // more than a socket holds
const ScopeId kScope = ScopeIdOf({ScopeKind::kPublic, ""});
const PeerLinkOptions kOptions{
    .staging_bytes = kBytes, .times = {}, .drain_timeout = absl::Milliseconds(1)};

struct Rank {
  explicit Rank(uint64_t seed, const Clock& clock)
      : runtime({.schedule = HostRuntimeOptions::Schedule::kManual, .seed = seed}),
        pool(*DevicePool::Create(
            runtime, {.capacity_bytes = int64_t{4} << 20, .chunk_bytes = int64_t{2} << 20})),
        transport(std::make_unique<HostTransport>(runtime)),
        link(*PeerLink::Create(runtime, *transport, clock, kOptions)) {}
  PeerRequest Request(PeerRequest::Half half, std::vector<std::byte*>* data = nullptr) {
    PeerRequest request;
    request.half = half;
    for (int i = 0; i < 4; ++i) {
      auto slab = std::make_shared<DeviceSlab>(*pool->Allocate(kScope, kBytes / 4));
      if (half == PeerRequest::Half::kSend) std::memset(slab->data(), 'a' + i, kBytes / 4);
      if (data != nullptr) data->push_back(slab->data());
      request.pieces.push_back({slab->data(), slab->bytes()});
      request.keep.push_back(std::move(slab));
    }
    request.done = [this](const absl::Status& status) { result = status; };
    return request;
  }
  void Step() {
    runtime.Step();
    link->Poll();
  }

  HostRuntime runtime;
  std::shared_ptr<DevicePool> pool;
  std::unique_ptr<PeerTransport> transport;
  std::unique_ptr<PeerLink> link;
  std::optional<absl::Status> result;
};

struct Pair {
  explicit Pair(uint64_t seed) : random(seed), a(seed, clock), b(seed + 1000, clock) {}
  void Join() {
    const PeerLinkId id = *a.link->NewId();
    PAGODA_ASSERT_OK(b.link->Join(id, 1));  // in either order
    PAGODA_ASSERT_OK(a.link->Join(id, 0));
    for (int i = 0; i < 100; ++i) Step();
    ASSERT_EQ(a.link->phase(), Phase::kReady);
    ASSERT_EQ(b.link->phase(), Phase::kReady);
  }
  void Step() { (random() % 2 == 0 ? a : b).Step(); }
  bool ended() const { return a.result.has_value() && b.result.has_value(); }

  FakeClock clock;
  std::mt19937_64 random;
  Rank a;
  Rank b;
};

TEST(PeerLinkTest, MovesPagesUnderEverySeed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed);
    pair.Join();
    for (int round = 0; round < 3; ++round) {
      std::vector<std::byte*> received;
      pair.a.result.reset();
      pair.b.result.reset();
      PAGODA_ASSERT_OK(pair.a.link->Start(pair.a.Request(PeerRequest::Half::kSend)));
      PeerRequest receive = pair.b.Request(PeerRequest::Half::kReceive, &received);
      const std::vector<std::shared_ptr<const void>> kept = receive.keep;  // to look at them
      PAGODA_ASSERT_OK(pair.b.link->Start(std::move(receive)));
      for (int i = 0; i < 100000 && !pair.ended(); ++i) pair.Step();
      ASSERT_TRUE(pair.ended());
      PAGODA_ASSERT_OK(*pair.a.result);
      PAGODA_ASSERT_OK(*pair.b.result);
      for (int i = 0; i < 4; ++i) {
        for (const int64_t at : {int64_t{0}, kBytes / 8, kBytes / 4 - 1}) {
          ASSERT_EQ(received[i][at], std::byte('a' + i)) << "seed " << seed;
        }
      }
      EXPECT_EQ(pair.a.pool->usage().used_bytes, 0);
    }
    EXPECT_EQ(pair.b.pool->usage().used_bytes, 0);
    EXPECT_EQ(pair.b.link->stats().bytes, 3 * kBytes);
    EXPECT_EQ(pair.b.link->stats().abort_count, 0);
  }
}

// A receiver without memory for some of it takes the rest.
TEST(PeerLinkTest, PiecesWithoutMemoryAreDropped) {
  Pair pair(1);
  pair.Join();
  std::vector<std::byte*> received;
  PeerRequest receive = pair.b.Request(PeerRequest::Half::kReceive, &received);
  const std::vector<std::shared_ptr<const void>> kept = receive.keep;
  std::memset(received[1], 'x', kBytes / 4);
  receive.pieces[1].data = nullptr;
  PAGODA_ASSERT_OK(pair.a.link->Start(pair.a.Request(PeerRequest::Half::kSend)));
  PAGODA_ASSERT_OK(pair.b.link->Start(std::move(receive)));
  for (int i = 0; i < 100000 && !pair.ended(); ++i) pair.Step();
  ASSERT_TRUE(pair.ended());
  PAGODA_ASSERT_OK(*pair.b.result);
  EXPECT_EQ(received[0][0], std::byte('a'));
  EXPECT_EQ(received[1][0], std::byte('x'));
  EXPECT_EQ(received[3][kBytes / 4 - 1], std::byte('d'));
  // All of it.
  receive = pair.b.Request(PeerRequest::Half::kReceive);
  for (DevicePiece& piece : receive.pieces) piece.data = nullptr;
  pair.a.result.reset();
  pair.b.result.reset();
  PAGODA_ASSERT_OK(pair.b.link->Start(std::move(receive)));
  PAGODA_ASSERT_OK(pair.a.link->Start(pair.a.Request(PeerRequest::Half::kSend)));
  for (int i = 0; i < 100000 && !pair.ended(); ++i) pair.Step();
  ASSERT_TRUE(pair.ended());
  PAGODA_ASSERT_OK(*pair.b.result);
  PeerRequest send = pair.a.Request(PeerRequest::Half::kSend);
  send.pieces[2].data = nullptr;
  EXPECT_THAT(pair.a.link->Start(std::move(send)), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PeerLinkTest, AnAbortIsAFault) {
  Pair pair(1);
  pair.a.link->Abort(absl::CancelledError("nothing to abort"));
  EXPECT_EQ(pair.a.link->phase(), Phase::kIdle);
  pair.Join();
  PAGODA_ASSERT_OK(pair.a.link->Start(pair.a.Request(PeerRequest::Half::kSend)));
  pair.a.link->Abort(absl::CancelledError("by the caller"));
  EXPECT_THAT(*pair.a.result, StatusIs(absl::StatusCode::kCancelled, "by the caller"));
  pair.a.link->Abort(absl::CancelledError("again"));  // its memory is still the device's
  EXPECT_EQ(pair.a.link->phase(), Phase::kDraining);
  EXPECT_GT(pair.a.pool->usage().used_bytes, 0);
  for (int i = 0; i < 1000 && pair.a.link->phase() != Phase::kBroken; ++i) pair.a.Step();
  EXPECT_EQ(pair.a.pool->usage().used_bytes, 0);
  for (int i = 0; i < 1000 && pair.b.link->phase() != Phase::kBroken; ++i) pair.b.Step();
  EXPECT_EQ(pair.b.link->phase(), Phase::kBroken);
}

// One end aborts after each number of steps, as a process that dies does; then a new id joins both.
TEST(PeerLinkTest, ADeathAtAnyMomentIsAStatusOnTheOtherSide) {
  for (int moment = 0; moment < 60; ++moment) {
    Pair pair(static_cast<uint64_t>(moment + 1));
    Rank& dying = moment % 2 == 0 ? pair.a : pair.b;
    Rank& other = moment % 2 == 0 ? pair.b : pair.a;
    const PeerLinkId id = *pair.a.link->NewId();
    PAGODA_ASSERT_OK(pair.a.link->Join(id, 0));
    PAGODA_ASSERT_OK(pair.b.link->Join(id, 1));
    bool started[2] = {};
    for (int i = 0; i < moment; ++i) {
      pair.Step();
      if (!started[0] && pair.a.link->phase() == Phase::kReady) {
        started[0] = pair.a.link->Start(pair.a.Request(PeerRequest::Half::kSend)).ok();
      }
      if (!started[1] && pair.b.link->phase() == Phase::kReady) {
        started[1] = pair.b.link->Start(pair.b.Request(PeerRequest::Half::kReceive)).ok();
      }
    }
    const bool other_started = started[&other == &pair.a ? 0 : 1];
    dying.transport->Abort();
    // What the other side has in its stream first, then its deadline where nobody is there to tell.
    for (int i = 0; i < 200; ++i) other.Step();
    pair.clock.Advance(absl::Seconds(11));
    for (int i = 0; i < 200; ++i) other.Step();
    EXPECT_EQ(other.link->phase(), Phase::kBroken) << "moment " << moment;
    if (other_started) {
      ASSERT_TRUE(other.result.has_value());
      EXPECT_FALSE(other.result->ok() && other.link->stats().done_count == 0);
    }
    EXPECT_EQ(other.pool->usage().used_bytes, 0) << "moment " << moment;
    EXPECT_EQ(other.link->stats().abort_count, 1);
    // The dead end's own link finds its connection gone too.
    for (int i = 0; i < 200; ++i) dying.Step();
    pair.clock.Advance(absl::Seconds(60));
    if (dying.link->phase() == Phase::kBroken && other.link->phase() == Phase::kBroken) pair.Join();
  }
}

TEST(PeerLinkTest, APeerThatStallsOrNeverComesEndsAtTheDeadline) {
  {
    Pair pair(1);
    PAGODA_ASSERT_OK(pair.a.link->Join(*pair.a.link->NewId(), 0));
    for (int i = 0; i < 10; ++i) pair.a.Step();
    EXPECT_EQ(pair.a.link->phase(), Phase::kJoining);
    pair.clock.Advance(kOptions.times.join_timeout);
    pair.a.Step();
    EXPECT_EQ(pair.a.link->phase(), Phase::kBroken);
    EXPECT_THAT(pair.a.link->fault(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  Pair pair(2);
  pair.Join();
  PAGODA_ASSERT_OK(pair.a.link->Start(pair.a.Request(PeerRequest::Half::kSend)));
  for (int i = 0; i < 200; ++i) pair.a.Step();
  EXPECT_FALSE(pair.a.result.has_value());
  EXPECT_EQ(pair.a.pool->usage().used_bytes, kBytes);
  pair.clock.Advance(absl::Seconds(5));
  pair.a.Step();
  ASSERT_TRUE(pair.a.result.has_value());
  EXPECT_THAT(*pair.a.result, StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (int i = 0; i < 10; ++i) pair.a.Step();
  EXPECT_EQ(pair.a.pool->usage().used_bytes, 0);
}

TEST(PeerLinkTest, MemoryStaysUntilTheStreamIsDone) {
  Pair pair(3);
  pair.Join();
  PAGODA_ASSERT_OK(pair.a.link->Start(pair.a.Request(PeerRequest::Half::kSend)));
  pair.b.transport->Abort();
  // The gather is still in the stream when the fault comes.
  for (int i = 0; i < 3; ++i) pair.a.link->Poll();
  pair.clock.Advance(absl::Seconds(5));
  for (int i = 0; i < 3; ++i) pair.a.link->Poll();
  ASSERT_TRUE(pair.a.result.has_value());
  EXPECT_EQ(pair.a.link->phase(), Phase::kDraining);
  EXPECT_EQ(pair.a.pool->usage().used_bytes, kBytes);
  pair.a.runtime.RunUntilIdle();
  pair.a.link->Poll();
  EXPECT_EQ(pair.a.link->phase(), Phase::kBroken);
  EXPECT_EQ(pair.a.pool->usage().used_bytes, 0);
}

TEST(PeerLinkTest, RequestsThatDoNotFitAndSizesThatDiffer) {
  Pair pair(4);
  PeerRequest early = pair.a.Request(PeerRequest::Half::kSend);
  EXPECT_THAT(pair.a.link->Start(early), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(pair.a.link->Start({}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(pair.a.link->Join({}, 2), StatusIs(absl::StatusCode::kInvalidArgument));
  pair.Join();
  PeerRequest large = early;
  large.pieces.push_back(large.pieces[0]);
  EXPECT_THAT(pair.a.link->Start(large),
              StatusIs(absl::StatusCode::kResourceExhausted, "asked 1310720 bytes"));
  PAGODA_ASSERT_OK(pair.a.link->Start(std::move(early)));
  PeerRequest fewer = pair.b.Request(PeerRequest::Half::kReceive);
  fewer.pieces.pop_back();
  PAGODA_ASSERT_OK(pair.b.link->Start(std::move(fewer)));
  large = {};
  for (int i = 0; i < 1000; ++i) pair.Step();
  ASSERT_TRUE(pair.ended());
  EXPECT_THAT(*pair.b.result, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(*pair.a.result, StatusIs(absl::StatusCode::kUnavailable));
}

TEST(PeerLinkTest, FaultsOfTheDevice) {
  for (const bool receives : {false, true}) {
    for (int64_t skipped = 0; skipped < 2; ++skipped) {
      Pair pair(5);
      pair.Join();
      Rank& rank = receives ? pair.b : pair.a;
      PeerRequest send = pair.a.Request(PeerRequest::Half::kSend);
      PeerRequest receive = pair.b.Request(PeerRequest::Half::kReceive);
      rank.runtime.FailNext(HostCall::kCopy, absl::InternalError("injected"));
      rank.runtime.FailNext(HostCall::kRecord, absl::InternalError("injected"), skipped);
      const absl::Status sent = pair.a.link->Start(std::move(send));
      const absl::Status got = pair.b.link->Start(std::move(receive));
      for (int i = 0; i < 3000; ++i) pair.Step();
      pair.clock.Advance(absl::Seconds(6));
      for (int i = 0; i < 100; ++i) pair.Step();
      const absl::Status& status = receives ? got : sent;
      EXPECT_THAT(status.ok() ? rank.result.value_or(absl::OkStatus()) : status,
                  StatusIs(absl::StatusCode::kInternal, "injected"));
      EXPECT_EQ(pair.a.link->phase(), Phase::kBroken);
      EXPECT_EQ(pair.b.link->phase(), Phase::kBroken);
      EXPECT_EQ(pair.a.pool->usage().used_bytes, 0);
      EXPECT_EQ(pair.b.pool->usage().used_bytes, 0);
    }
  }
  Pair pair(6);
  pair.Join();
  PAGODA_ASSERT_OK(pair.a.link->Start(pair.a.Request(PeerRequest::Half::kSend)));
  pair.a.runtime.Lose("test");
  for (int i = 0; i < 5; ++i) pair.a.Step();
  ASSERT_TRUE(pair.a.result.has_value());
  EXPECT_THAT(*pair.a.result, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(pair.a.pool->usage().used_bytes, 0);
}

}  // namespace
}  // namespace pagoda
