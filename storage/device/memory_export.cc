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
  if (Poll()) pool_->Advance(timeline_, UINT64_MAX);
}

absl::StatusOr<DeviceGrant> DeviceExport::Share(const DeviceSlab& slab) {
  if (!Poll()) return absl::UnavailableError("device export: the worker has ended");
  const SlabPlace& place = slab.place();
  const auto [it, fresh] = sent_.try_emplace(place.chunk, uint64_t{place.chunk} + 1);
  if (fresh) {
    absl::StatusOr<MemoryHandle> handle = pool_->Share(slab, timeline_);
    absl::Status status = handle.status();
    if (status.ok()) {
      ExportedMemory memory{it->second, *std::move(handle)};
      status = send_(EncodeExport(memory), memory.handle.fd.get());
    }
    if (!status.ok()) {
      sent_.erase(it);
      return status;
    }
  }
  const uint64_t ticket = next_ticket_++;
  slab.KeepUntil({timeline_, ticket});
  return DeviceGrant{it->second, place.offset, place.bytes, ticket};
}

bool DeviceExport::Poll() {
  if (ended_) return false;
  // The worker may write any number: it only ever gives back what it was granted itself.
  pool_->Advance(timeline_, LoadFlag(flags_.word(static_cast<int>(ExportWord::kRead))));
  switch (worker_.Look()) {
    case PeerProcess::State::kAlive:
      return true;
    case PeerProcess::State::kGone:
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
