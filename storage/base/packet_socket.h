// Packets and descriptors over a Unix socket of SOCK_SEQPACKET: one call, one message.
//
// Threads  pure functions over descriptors; who shares one serialises
// Errors   UNAVAILABLE          the peer is gone, or the system refuses; names the call
//          DEADLINE_EXCEEDED    nothing came in time
//          RESOURCE_EXHAUSTED   it would block (TrySend), or a packet is longer than its buffer
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/base/bytes.h"
#include "storage/base/unique_fd.h"

namespace pagoda {

// A non-blocking connection; a Unix socket answers at once or not at all.
absl::StatusOr<UniqueFd> ConnectPackets(const std::string& path);

// Never blocks. `fd` goes along when it is not negative; it stays the caller's.
absl::Status TrySendPacket(int socket, absl::string_view bytes, int fd = -1);

struct Packet {
  std::string bytes;  // empty: the peer has closed
  UniqueFd fd;        // the first descriptor that came along; others are closed
};
// Nothing: it would block. Descriptors get close-on-exec.
absl::StatusOr<std::optional<Packet>> TryReceivePacket(int socket, size_t bytes_max);
// Waits until a packet or the end comes.
absl::StatusOr<Packet> ReceivePacket(int socket, size_t bytes_max, absl::Duration timeout);

}  // namespace pagoda
