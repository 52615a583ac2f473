#include "storage/hbm_export.h"

#include <optional>
#include <set>
#include <utility>

#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr absl::Duration kDrainTimeout = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<HbmExport>> HbmExport::Open(HbmTier& tier, int socket,
                                                           SendPacket send) {
  DeviceRuntime& runtime = tier.pool().runtime();
  PAGODA_RETURN_IF_ERROR(runtime.health());
  std::unique_ptr<HbmExport> opened(new HbmExport(runtime));
  PAGODA_ASSIGN_OR_RETURN(opened->stream_, runtime.NewStream());
  PAGODA_ASSIGN_OR_RETURN(opened->told_, runtime.NewEvent());
  PAGODA_ASSIGN_OR_RETURN(opened->export_,
                          DeviceExport::Open(tier.shared_pool(), socket, std::move(send)));
  const FlagPage& flags = opened->export_->flags();
  PAGODA_ASSIGN_OR_RETURN(opened->registration_,
                          runtime.RegisterHost(flags.data(), FlagPage::kBytes));
  return opened;
}

HbmExport::~HbmExport() { Drain(kDrainTimeout); }

void HbmExport::Drain(absl::Duration timeout) {
  if (std::exchange(drained_, true)) return;
  if (unrecorded_) (void)Record();
  bool idle = true;
  if (unrecorded_) {
    idle = !runtime_.health().ok();  // of a lost device nothing runs
  } else if (recorded_) {
    idle = !absl::IsDeadlineExceeded(runtime_.Await(*told_, timeout));
  }
  if (idle) return;
  LogError("device_stream_leaked", {{"cause", "a worker's flags were not written in time"}});
  (void)export_.release();
  (void)registration_.release();
  (void)stream_.release();
  (void)told_.release();
}

absl::Status HbmExport::Enqueue(const DevicePage& page, uint64_t first) {
  for (size_t group = 0; group < page.group_count(); ++group) {
    PAGODA_RETURN_IF_ERROR(page.WaitLayer(*stream_, page.group_layer(group)));
    PAGODA_RETURN_IF_ERROR(stream_->WriteFlag(word(ExportWord::kArrived), first + group));
  }
  return absl::OkStatus();
}

absl::Status HbmExport::Record() {
  PAGODA_RETURN_IF_ERROR(stream_->Record(*told_));
  unrecorded_ = false;
  recorded_ = true;
  return absl::OkStatus();
}

absl::Status HbmExport::Announce(const DevicePage& page, uint64_t& arrival) {
  arrival = 0;
  if (const std::optional<absl::Status> result = page.arrived()) return *result;
  const uint64_t first = next_arrival_;
  next_arrival_ += page.group_count();
  unrecorded_ = true;
  absl::Status status = Enqueue(page, first);
  status.Update(Record());  // also behind what a failure leaves on its way
  if (status.ok()) arrival = first;
  return status;
}

size_t HbmExport::NewMemoryCount(const DevicePage& page) const {
  std::set<uint32_t> chunks;
  for (size_t i = 0; i < page.segment_count(); ++i) {
    const DeviceSlab& slab = page.segment(i);
    if (!export_->HasMemoryOf(slab)) chunks.insert(slab.place().chunk);
  }
  return chunks.size();
}

absl::StatusOr<SharedDevicePage> HbmExport::Share(const DevicePage& page) {
  SharedDevicePage shared;
  PAGODA_RETURN_IF_ERROR(Announce(page, shared.arrival));
  shared.segments.reserve(page.segment_count());
  for (size_t i = 0; i < page.segment_count(); ++i) {
    PAGODA_ASSIGN_OR_RETURN(const DeviceGrant grant, export_->Share(page.segment(i)));
    shared.segments.push_back(grant);
  }
  return shared;
}

bool HbmExport::Poll() {
  if (!runtime_.health().ok()) {
    StoreFlag(word(ExportWord::kLost), 1);
    StoreFlag(word(ExportWord::kArrived), UINT64_MAX);
  }
  return export_->Poll();
}

}  // namespace pagoda
