// TieredStore: emptying sparse chunks of host memory, so that they can take slabs of another size
// or scope. Pages are copied without a lock and swapped under it; who reads the old copy keeps it,
// and its slabs go when it lets go. Leased pages, and pages that are being read or written, stay.
#include <optional>

#include "storage/base/log.h"
#include "storage/tiered_store.h"

namespace pagoda {

bool TieredStore::MayMove(EntryId id, long references) const {
  if (id >= directory_.slot_count()) return false;
  const DirectoryEntry& entry = directory_.at(id);
  return entry.host != nullptr && !entry.locked() && !entry.queued && !demoting_.contains(id) &&
         entry.host.use_count() == references;
}

int64_t TieredStore::MovePage(EntryId id, uint32_t chunk, Aftermath& after) {
  HostPagePtr page;
  {
    absl::MutexLock lock(&mutex_);
    if (closing_ || !MayMove(id, /*references=*/1)) return 0;
    page = directory_.at(id).host;
  }
  const int64_t bytes = page->BytesIn(chunk);
  if (bytes == 0) return 0;  // the slot of the entry was used again
  absl::StatusOr<HostPagePtr> moved = page->MovedOutOf(chunk);
  const bool damaged = moved.status().code() == absl::StatusCode::kDataLoss;
  if (!moved.ok() && !damaged) return 0;  // its holes were taken meanwhile
  if (damaged) LogError("host_page_broken", {{"error", moved.status().ToString()}});
  absl::MutexLock lock(&mutex_);
  if (!MayMove(id, /*references=*/2) || directory_.at(id).host != page) return 0;
  if (damaged) {
    CountIntegrity(TierKind::kHost, IntegrityKind::kSegment, after);
    DropHost(id, EvictionReason::kIntegrity, after);
    return 0;
  }
  after.pages.push_back(directory_.SetHost(id, *std::move(moved), directory_.at(id).dirty));
  counters_.compacted_bytes += bytes;
  return bytes;
}

int64_t TieredStore::CompactOneChunk() {
  const std::optional<ChunkDrain> drain = host_->BeginDrain();
  if (!drain.has_value()) return 0;
  int64_t moved_bytes = 0;
  for (const SlabOwner owner : drain->owners) {
    Aftermath after;
    moved_bytes += MovePage(owner, drain->chunk, after);
    Finish(after);
  }
  host_->EndDrain();
  return moved_bytes;
}

void TieredStore::CompactIfFragmented() {
  const absl::Duration now = clock_.Monotonic();
  while (move_budget_.Available(now) > 0) {
    const HostTierUsage usage = host_->usage();
    if (!policy::IsFragmented(usage.used_bytes, usage.reserved_bytes, usage.capacity_bytes,
                              host_->chunk_bytes(), host_marks())) {
      return;
    }
    const int64_t moved_bytes = CompactOneChunk();
    if (moved_bytes == 0) return;
    move_budget_.Spend(moved_bytes);
  }
}

}  // namespace pagoda
