// Two ranks on one machine, over a Unix socket: the transport of tests, with the faults that a
// network has. Rank 0 listens, rank 1 connects; a transfer is its length and its bytes.
#pragma once

#include <string>

#include "storage/base/unique_fd.h"
#include "storage/device/peer_transport.h"

namespace pagoda {

class HostTransport final : public PeerTransport {
 public:
  // Of device memory that this process can read: the host backend's.
  explicit HostTransport(DeviceRuntime& runtime) : runtime_(runtime) {}
  ~HostTransport() override { Abort(); }

  absl::StatusOr<PeerLinkId> NewId() override;
  absl::Status Join(const PeerLinkId& id, int rank) override;
  absl::StatusOr<bool> Poll() override;
  absl::Status Send(const std::byte* source, int64_t bytes, DeviceStream& stream) override;
  absl::Status Receive(std::byte* target, int64_t bytes, DeviceStream& stream) override;
  void Abort() override;

 private:
  enum class Task { kNone, kAccept, kConnect, kSend, kReceive };
  absl::Status Begin(Task task, std::byte* data, int64_t bytes, DeviceStream& stream);
  absl::StatusOr<bool> Accept();
  absl::StatusOr<bool> Connect();
  absl::StatusOr<bool> Move();
  absl::Status CheckPeer() const;

  DeviceRuntime& runtime_;
  UniqueFd listener_;
  UniqueFd socket_;
  std::string name_;  // of the socket, in the abstract namespace
  Task task_ = Task::kNone;
  std::unique_ptr<DeviceEvent> before_;  // what the transfer comes after
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t header_done_ = 0;
  int64_t done_ = 0;
  uint64_t header_ = 0;
};

}  // namespace pagoda
