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
// Packets    fixed 112 bytes, little-endian, one descriptor beside:
//            0 magic "PGDADEV\1" | 8 u8 kind (1 flags, 2 memory) | 9 u8 memory kind
//            16 u64 memory id | 24 i64 bytes | 32 uuid (16) | 48 legacy handle (64)
// Threads    DeviceExport, DeviceImport: one at a time
// Ownership  the socket stays the caller's; pool and runtime outlive both
// Errors     INVALID_ARGUMENT    a packet or grant that is none, memory of another GPU
//            RESOURCE_EXHAUSTED  the worker does not read its socket
//            UNAVAILABLE         the worker has gone
//            others as in runtime.h: this pair of processes cannot share memory, so use shared host
//            memory instead
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/packet_socket.h"
#include "storage/device/device_pool.h"
#include "storage/device/flag_page.h"
#include "storage/device/peer_process.h"
#include "storage/device/runtime.h"

namespace pagoda {

constexpr size_t kExportPacketBytes = 112;

// A granted slab, for the worker.
struct DeviceGrant {
  uint64_t memory_id = 0;  // never used for other memory in one connection
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t ticket = 0;  // to be finished, in order
};

// The daemon's end, one for each worker.
class DeviceExport {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceExport>> Open(std::shared_ptr<DevicePool> pool,
                                                            int socket);
  // The worker reads nothing any more, or its memory stays with its scope as long as the pool
  // lives.
  ~DeviceExport();

  // Keeps the slab from being used again until its ticket is finished.
  absl::StatusOr<DeviceGrant> Share(const DeviceSlab& slab);

  // Takes back what the worker has finished. False: it has ended, and holds nothing any more.
  bool Poll();

 private:
  DeviceExport(std::shared_ptr<DevicePool> pool, int socket, FlagPage flags);

  const std::shared_ptr<DevicePool> pool_;
  const int socket_;
  const PeerProcess worker_;
  const FlagPage flags_;
  const TimelineId timeline_;
  std::map<uint32_t, uint64_t> sent_;  // chunk -> memory id
  uint64_t next_ticket_ = 1;
  bool ended_ = false;
};

// The worker's end.
class DeviceImport {
 public:
  // Waits for the flag page.
  static absl::StatusOr<std::unique_ptr<DeviceImport>> Open(DeviceRuntime& runtime, int socket,
                                                            absl::Duration timeout);

  // Maps the memory that a packet of the socket brings.
  absl::Status Receive(Packet packet);
  // NOT_FOUND: its memory has not come yet.
  absl::StatusOr<std::byte*> Find(const DeviceGrant& grant) const;
  // Behind all work of `stream`: this ticket and those before it are read.
  absl::Status Finish(DeviceStream& stream, uint64_t ticket);

 private:
  DeviceImport(DeviceRuntime& runtime, FlagPage flags,
               std::unique_ptr<HostRegistration> registration);

  DeviceRuntime& runtime_;
  const FlagPage flags_;
  const std::unique_ptr<HostRegistration> registration_;
  std::map<uint64_t, std::unique_ptr<DeviceBuffer>> memory_;
};

// Of a packet that brings memory; for DeviceImport and tests.
struct ExportedMemory {
  uint64_t memory_id = 0;
  MemoryHandle handle;
};
std::string EncodeExport(const ExportedMemory& memory);  // the descriptor goes beside it
absl::StatusOr<ExportedMemory> DecodeExport(Packet packet);

}  // namespace pagoda
