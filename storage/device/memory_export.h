// Device memory of the daemon in a worker's address space, over their Unix socket. The daemon sends
// chunks and grants slabs of them; the worker reads them by its own streams and says by a flag word
// how far it has come. No IPC events: those need a shared /dev/shm.
//
//   daemon                                  worker
//   DeviceExport::Open   -- flag page -->   DeviceImport::Open
//   Share(slab)          -- chunk, once ->  Receive
//        `-- Grant, by whatever call it was asked for: a lease --> Find, reads
//   Poll                 <- word 0 --       Finish(stream, ticket)
//
// A slab that was granted is used again when the worker has finished its ticket or has ended. A
// worker that may map a chunk can also write it, GPUs have no read-only maps: give it chunks of
// scopes that it may write, and check what comes back from device memory against its checksums.
//
// Packets    memory_import.h
// Threads    DeviceExport: one at a time
// Ownership  the socket stays the caller's; the runtime outlives this
// Errors     RESOURCE_EXHAUSTED  the worker does not read its socket
//            UNAVAILABLE         the worker has gone
//            others as in runtime.h: this pair of processes cannot share memory, so use shared host
//            memory instead
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/device/device_pool.h"
#include "storage/device/flag_page.h"
#include "storage/device/memory_import.h"
#include "storage/device/peer_process.h"

namespace pagoda {

// Sends a packet and, if it is not negative, a descriptor, which stays the caller's. Never waits.
// RESOURCE_EXHAUSTED: nothing of it has left; after another error it may have.
using SendPacket = std::function<absl::Status(absl::string_view bytes, int fd)>;

// The daemon's end, one for each worker.
class DeviceExport {
 public:
  // `send`: where others write to the socket, too; null: straight to it.
  static absl::StatusOr<std::unique_ptr<DeviceExport>> Open(std::shared_ptr<DevicePool> pool,
                                                            int socket, SendPacket send = nullptr);
  // The worker reads nothing any more. If it lives and was given memory, that stays with its scope
  // as long as the pool lives.
  ~DeviceExport();

  // Keeps the slab from being used again until its ticket is finished.
  absl::StatusOr<DeviceGrant> Share(const DeviceSlab& slab);

  // Takes back what the worker has finished. False: it has ended, and holds nothing any more.
  bool Poll();

  const FlagPage& flags() const { return flags_; }
  uint64_t last_ticket() const { return next_ticket_ - 1; }
  // Pieces of memory that the worker was given so far.
  size_t memory_count() const { return sent_.size(); }
  bool HasMemoryOf(const DeviceSlab& slab) const { return sent_.contains(slab.place().chunk); }

 private:
  DeviceExport(std::shared_ptr<DevicePool> pool, int socket, FlagPage flags, SendPacket send);

  const std::shared_ptr<DevicePool> pool_;
  const SendPacket send_;
  const PeerProcess worker_;
  const FlagPage flags_;
  const TimelineId timeline_;
  std::set<uint32_t> sent_;  // chunks
  uint64_t next_ticket_ = 1;
  bool ended_ = false;
};

}  // namespace pagoda
