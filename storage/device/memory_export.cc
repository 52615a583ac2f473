#include "storage/device/memory_export.h"

#include <utility>

#include "storage/base/packet_socket.h"
#include "storage/base/status_macros.h"

namespace pagoda {

absl::StatusOr<std::unique_ptr<DeviceExport>> DeviceExport::Open(std::shared_ptr<DevicePool> pool,
                                                                 int socket, SendPacket send) {
  PAGODA_ASSIGN_OR_RETURN(FlagPage flags, FlagPage::Create());
  if (send == nullptr) {
    send = [socket](absl::string_view bytes, int fd) { return TrySendPacket(socket, bytes, fd); };
  }
  PAGODA_RETURN_IF_ERROR(send(EncodeFlags(), flags.fd()));
  return std::unique_ptr<DeviceExport>(
      new DeviceExport(std::move(pool), socket, std::move(flags), std::move(send)));
}

DeviceExport::DeviceExport(std::shared_ptr<DevicePool> pool, int socket, FlagPage flags,
                           SendPacket send)
    : pool_(std::move(pool)),
      send_(std::move(send)),
      worker_(socket),
      flags_(std::move(flags)),
      timeline_(pool_->AddTimeline()) {}

// The caller says that the worker's reads are over. Whether it has unmapped the memory only its end
// tells: until then its chunks go to no other scope.
DeviceExport::~DeviceExport() {
  (void)Poll();
  if (sent_.empty()) {
    pool_->EndTimeline(timeline_);
  } else {
    pool_->Advance(timeline_, UINT64_MAX);
  }
}

absl::StatusOr<DeviceGrant> DeviceExport::Share(const DeviceSlab& slab) {
  if (!Poll()) return absl::UnavailableError("device export: the worker has ended");
  const SlabPlace& place = slab.place();
  const uint64_t memory_id = uint64_t{place.chunk} + 1;
  if (!sent_.contains(place.chunk)) {
    PAGODA_ASSIGN_OR_RETURN(MemoryHandle handle, pool_->Export(slab));
    const ExportedMemory memory{memory_id, std::move(handle)};
    const absl::Status status = send_(EncodeExport(memory), memory.handle.fd.get());
    if (absl::IsResourceExhausted(status)) return status;
    // After another error, too, the worker may have it.
    pool_->AddImporter(slab, timeline_, memory.handle.kind);
    sent_.insert(place.chunk);
    PAGODA_RETURN_IF_ERROR(status);
  }
  const uint64_t ticket = next_ticket_++;
  slab.KeepUntil({timeline_, ticket});
  return DeviceGrant{memory_id, place.offset, place.bytes, ticket};
}

bool DeviceExport::Poll() {
  if (ended_) return false;
  // The worker may write any number: it only ever gives back what it was granted itself.
  pool_->Advance(timeline_, LoadFlag(flags_.word(static_cast<int>(ExportWord::kRead))));
  switch (worker_.Look()) {
    case PeerProcess::State::kAlive:
      return true;
    case PeerProcess::State::kGone:
      // It may live and read on: it looks at this word after its last read, so that it is told
      // before anybody else gets its slabs.
      StoreFlag(flags_.word(static_cast<int>(ExportWord::kLost)), 1);
      pool_->Advance(timeline_, UINT64_MAX);
      break;
    case PeerProcess::State::kEnded:
      pool_->EndTimeline(timeline_);
      break;
  }
  ended_ = true;
  return false;
}

}  // namespace pagoda
