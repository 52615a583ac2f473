// Goal: pages move between two devices, and a peer that dies leaves a link that can be joined
// again. Method: both ranks in one thread, which polls them in turn, on whatever devices are
// linked.
#include <gtest/gtest.h>

#include <optional>

#include "absl/time/clock.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/peer_link.h"
#include "storage/device/testing/host_arena.h"
#include "storage/device/testing/test_device.h"
#include "storage/device/testing/test_transport.h"

namespace pagoda {
namespace {

using Phase = LinkMachine::Phase;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int64_t kBytes = int64_t{4} << 20;
constexpr int kPieces = 8;
const PeerLinkOptions kOptions{
    .staging_bytes = kBytes,
    .times = {.join_timeout = absl::Seconds(60), .pause_min = absl::Milliseconds(1)}};

struct Rank {
  explicit Rank(int index) : device(*OpenTestDevice(index)) {
    registration = *device->RegisterHost(host.data(), host.bytes());
    memory = *device->Allocate(kBytes, DeviceSharing::kPrivate);
    stream = *device->NewStream();
    event = *device->NewEvent();
  }
  void Open() {
    auto opened = OpenTestTransport(*device);
    PAGODA_ASSERT_OK(opened);
    transport = *std::move(opened);
    link = *PeerLink::Create(*device, *transport, SystemClock(), kOptions);
  }
  absl::Status Copy(CopyDirection direction) {
    const bool up = direction == CopyDirection::kHostToDevice;
    const CopyPiece piece{up ? memory->data() : host.data(), up ? host.data() : memory->data(),
                          kBytes};
    absl::Status status = stream->CopyBatch(direction, {piece});
    if (status.ok()) status = stream->Record(*event);
    return status.ok() ? device->Await(*event, kLong) : status;
  }
  PeerRequest Request(PeerRequest::Half half) {
    PeerRequest request;
    request.half = half;
    request.timeout = kLong;
    // The receiver's pieces lie in the opposite order.
    for (int i = 0; i < kPieces; ++i) {
      const int place = half == PeerRequest::Half::kSend ? i : kPieces - 1 - i;
      request.pieces.push_back({memory->data() + place * (kBytes / kPieces), kBytes / kPieces});
    }
    request.done = [this](const absl::Status& status) { result = status; };
    return request;
  }

  HostArena host{kBytes};
  std::unique_ptr<DeviceRuntime> device;
  std::unique_ptr<HostRegistration> registration;
  std::unique_ptr<DeviceBuffer> memory;
  std::unique_ptr<DeviceStream> stream;
  std::unique_ptr<DeviceEvent> event;
  std::unique_ptr<PeerTransport> transport;
  std::unique_ptr<PeerLink> link;
  std::optional<absl::Status> result;
};

template <typename Condition>
bool PollUntil(Rank& a, Rank& b, const Condition& condition) {
  const absl::Time end = absl::Now() + kLong;
  while (!condition()) {
    if (absl::Now() > end) return false;
    a.link->Poll();
    b.link->Poll();
  }
  return true;
}

void Join(Rank& a, Rank& b) {
  const auto id = a.link->NewId();
  PAGODA_ASSERT_OK(id);
  PAGODA_ASSERT_OK(a.link->Join(*id, 0));
  PAGODA_ASSERT_OK(b.link->Join(*id, 1));
  ASSERT_TRUE(PollUntil(
      a, b, [&] { return a.link->phase() == Phase::kReady && b.link->phase() == Phase::kReady; }))
      << a.link->fault() << b.link->fault();
}

void MoveOnce(Rank& from, Rank& to, uint8_t value) {
  for (int i = 0; i < kPieces; ++i) {
    from.host.Fill(i * (kBytes / kPieces), kBytes / kPieces, static_cast<uint8_t>(value + i));
  }
  PAGODA_ASSERT_OK(from.Copy(CopyDirection::kHostToDevice));
  from.result.reset();
  to.result.reset();
  PAGODA_ASSERT_OK(from.link->Start(from.Request(PeerRequest::Half::kSend)));
  PAGODA_ASSERT_OK(to.link->Start(to.Request(PeerRequest::Half::kReceive)));
  ASSERT_TRUE(
      PollUntil(from, to, [&] { return from.result.has_value() && to.result.has_value(); }));
  PAGODA_ASSERT_OK(*from.result);
  PAGODA_ASSERT_OK(*to.result);
  PAGODA_ASSERT_OK(to.Copy(CopyDirection::kDeviceToHost));
  for (int i = 0; i < kPieces; ++i) {
    EXPECT_TRUE(to.host.Is((kPieces - 1 - i) * (kBytes / kPieces), kBytes / kPieces,
                           static_cast<uint8_t>(value + i)));
  }
}

TEST(PeerLinkDeviceTest, MovesBothWaysAndJoinsAgainAfterADeath) {
  if (TestDeviceCount() < 2) GTEST_SKIP() << "fewer than two GPUs";
  Rank a(0);
  Rank b(1);
  if (const auto probe = OpenTestTransport(*a.device); !probe.ok()) GTEST_SKIP() << probe.status();
  a.Open();
  b.Open();
  Join(a, b);
  MoveOnce(a, b, 10);
  MoveOnce(b, a, 50);
  // One end goes; the other one ends by its fault or its deadline and not later.
  b.link.reset();
  b.transport.reset();
  PeerRequest lost = a.Request(PeerRequest::Half::kReceive);
  lost.timeout = absl::Seconds(2);
  a.result.reset();
  const absl::Status started = a.link->Start(std::move(lost));
  const absl::Time end = absl::Now() + kLong;
  while (a.link->phase() != Phase::kBroken && absl::Now() < end) a.link->Poll();
  ASSERT_EQ(a.link->phase(), Phase::kBroken);
  EXPECT_FALSE(started.ok() && a.result.value_or(absl::OkStatus()).ok());
  b.Open();
  absl::SleepFor(absl::Milliseconds(2));
  Join(a, b);
  MoveOnce(a, b, 90);
}

}  // namespace
}  // namespace pagoda
