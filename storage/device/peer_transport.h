// One connection of two ranks that moves device memory, whatever carries it: NCCL
// (nccl_transport.h) or sockets (host_transport.h). No call waits for the peer.
//
// Units      bytes
// Threads    one at a time
// Ownership  memory of a Send or Receive stays until work behind it in the stream is done
// Errors     UNAVAILABLE  the peer, the library or the device is gone; others as in runtime.h.
//            After any error only Abort is called
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/device/runtime.h"

namespace pagoda {

// What one rank makes and both join by; opaque. It goes to the peer by a call of its own, over an
// authenticated channel: whoever has it can join.
struct PeerLinkId {
  std::array<uint8_t, 128> bytes{};
  bool operator==(const PeerLinkId&) const = default;
};

class PeerTransport {
 public:
  virtual ~PeerTransport() = default;  // aborts what there is

  virtual absl::StatusOr<PeerLinkId> NewId() = 0;
  // Begins to join; rank is 0 or 1. One connection at a time.
  virtual absl::Status Join(const PeerLinkId& id, int rank) = 0;
  // Whether what was begun, a join, a send or a receive, stands in its stream: what is put behind
  // it comes after it. True when nothing was begun. An error: the connection is broken.
  virtual absl::StatusOr<bool> Poll() = 0;
  // Both sides give the same number of bytes. Behind all work of `stream`.
  virtual absl::Status Send(const std::byte* source, int64_t bytes, DeviceStream& stream) = 0;
  virtual absl::Status Receive(std::byte* target, int64_t bytes, DeviceStream& stream) = 0;
  // Ends the connection at once, also while it is joined or used; the peer finds out.
  virtual void Abort() = 0;
};

}  // namespace pagoda
