// The worker's end of device memory that the daemon shares (memory_export.h): maps the memory that
// packets bring, finds what was granted in it, and says how far it has read.
//
// Packets    fixed 112 bytes, little-endian, one descriptor beside:
//            0 magic "PGDADEV\1" | 8 u8 kind (1 flags, 2 memory) | 9 u8 memory kind
//            16 u64 memory id | 24 i64 bytes | 32 uuid (16) | 48 legacy handle (64)
// Threads    DeviceImport: one at a time, but for word()
// Ownership  the socket stays the caller's; the runtime outlives this
// Errors     INVALID_ARGUMENT    a packet or grant that is none, memory of another GPU
//            UNAVAILABLE         the daemon has gone
//            others as in runtime.h: this pair of processes cannot share memory, so use shared host
//            memory instead
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/base/packet_socket.h"
#include "storage/device/flag_page.h"
#include "storage/device/runtime.h"

namespace pagoda {

constexpr size_t kExportPacketBytes = 112;

// Flag words of the page that both ends map.
enum class ExportWord : int {
  kRead = 0,     // written by the worker's streams: all tickets up to this are read
  kArrived = 1,  // written by the daemon's: what it announced up to this is there
  kLost = 2,     // not 0: what was granted holds no more, and what kArrived says is no use: the
                 // daemon's device is lost, or the connection with nobody to tell of our end
};

// A granted slab, for the worker.
struct DeviceGrant {
  uint64_t memory_id = 0;  // never used for other memory in one connection
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t ticket = 0;  // to be finished, in order
};

// Of a packet that brings memory.
struct ExportedMemory {
  uint64_t memory_id = 0;
  MemoryHandle handle;
};
std::string EncodeExport(const ExportedMemory& memory);  // the descriptor goes beside it
absl::StatusOr<ExportedMemory> DecodeExport(Packet packet);
std::string EncodeFlags();  // the page goes beside it
// Whether it is one of either kind, by its magic; on a socket where others come, too.
bool IsExportPacket(absl::string_view bytes);

class DeviceImport {
 public:
  // Waits for the flag page.
  static absl::StatusOr<std::unique_ptr<DeviceImport>> Open(DeviceRuntime& runtime, int socket,
                                                            absl::Duration timeout);
  // The same with the packet that brings the flag page.
  static absl::StatusOr<std::unique_ptr<DeviceImport>> Open(DeviceRuntime& runtime, Packet packet);

  // Maps the memory that a packet of the socket brings.
  absl::Status Receive(Packet packet);
  // NOT_FOUND: its memory has not come yet.
  absl::StatusOr<std::byte*> Find(const DeviceGrant& grant) const;
  // Behind all work of `stream`: this ticket and those before it are read.
  absl::Status Finish(DeviceStream& stream, uint64_t ticket);
  uint64_t* word(ExportWord which) const { return flags_.word(static_cast<int>(which)); }

 private:
  DeviceImport(DeviceRuntime& runtime, FlagPage flags,
               std::unique_ptr<HostRegistration> registration);

  DeviceRuntime& runtime_;
  const FlagPage flags_;
  const std::unique_ptr<HostRegistration> registration_;
  std::map<uint64_t, std::unique_ptr<DeviceBuffer>> memory_;
};

}  // namespace pagoda
