#include "storage/hbm_tier.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace pagoda {

absl::Status HbmTierOptions::Validate() const {
  PAGODA_RETURN_IF_ERROR(pool.Validate());
  PAGODA_RETURN_IF_ERROR(mover.Validate());
  if (pinned_bytes_max >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("hbm pinned_bytes_max is %d; must not be negative", pinned_bytes_max));
}

// Groups are copied in order: the last one that begins at or before the layer has those before it.
size_t DevicePage::GroupOf(int layer) const {
  const auto after = std::upper_bound(groups_.begin(), groups_.end(), layer);
  return after == groups_.begin() ? 0 : static_cast<size_t>(after - groups_.begin() - 1);
}

absl::Status DevicePage::WaitLayer(DeviceStream& consumer, int layer) const {
  return arrival_->WaitLayer(consumer, GroupOf(layer));
}

absl::Status DevicePage::AwaitLayer(int layer, absl::Duration timeout) const {
  return arrival_->AwaitLayer(GroupOf(layer), timeout);
}

absl::Status DevicePage::AwaitAll(absl::Duration timeout) const {
  return arrival_->AwaitLayer(groups_.size() - 1, timeout);
}

absl::StatusOr<std::unique_ptr<HbmTier>> HbmTier::Create(DeviceRuntime& runtime, HostTier& host,
                                                         const Clock& clock,
                                                         const HbmTierOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<HbmTier> tier(new HbmTier(host, options));
  PAGODA_ASSIGN_OR_RETURN(tier->pool_, DevicePool::Create(runtime, options.pool));
  tier->pinned_ = std::make_shared<PinnedMemory>(runtime, options.pinned_bytes_max);
  PAGODA_ASSIGN_OR_RETURN(tier->mover_, TierMover::Create(runtime, clock, options.mover));
  // Weak: the host tier outlives this one.
  host.OnUnmap([pinned = std::weak_ptr<PinnedMemory>(tier->pinned_)](const std::byte* chunk) {
    if (const auto registered = pinned.lock()) registered->Forget(chunk);
  });
  return tier;
}

HbmTier::~HbmTier() {
  mover_.reset();
  host_.OnUnmap(nullptr);
  DropAll();
}

absl::StatusOr<std::shared_ptr<DevicePage>> HbmTier::Prepare(const HostPage& page) {
  std::shared_ptr<DevicePage> target(new DevicePage(pool_, page.header()));
  std::set<int> groups;
  for (size_t i = 0; i < page.segment_count(); ++i) {
    const auto bytes = static_cast<int64_t>(page.padded_segment(i).size());
    absl::StatusOr<DeviceSlab> slab = pool_->Allocate(page.header().scope, bytes);
    // What is in limbo comes back by itself: for that much nothing more has to go.
    while (absl::IsResourceExhausted(slab.status()) && pool_->usage().limbo_bytes < bytes &&
           EvictOne()) {
      slab = pool_->Allocate(page.header().scope, bytes);
    }
    if (!slab.ok()) return slab.status();
    target->slabs_.push_back(*std::move(slab));
    target->bytes_ += bytes;
    groups.insert(page.header().segments[i].layer_begin);
  }
  target->groups_.assign(groups.begin(), groups.end());
  return target;
}

Move HbmTier::MoveOf(const HostPagePtr& page, const std::shared_ptr<DevicePage>& target) {
  Move move;
  move.direction = CopyDirection::kHostToDevice;
  move.layers.resize(target->groups_.size());
  for (size_t i = 0; i < page->segment_count(); ++i) {
    const ByteSpan source = page->padded_segment(i);
    move.layers[target->GroupOf(page->header().segments[i].layer_begin)].push_back(
        {target->slabs_[i].data(), source.data(), static_cast<int64_t>(source.size())});
  }
  move.keep = {page, target};
  move.timeout = options_.copy_timeout;
  move.done = [this, id = target.get()](const absl::Status& status) {
    if (!status.ok()) Failed(id);
  };
  return move;
}

absl::StatusOr<DevicePagePtr> HbmTier::Promote(const HostPagePtr& page) {
  const RecordKey& record = page->header().record;
  if (DevicePagePtr here = Find(record); here != nullptr && here->header() == page->header()) {
    return here;
  }
  // Slabs that are plain memory are copied all the same.
  std::vector<MutableByteSpan> chunks;
  page->AppendChunks(chunks);
  for (const MutableByteSpan& chunk : chunks) (void)pinned_->Pin(chunk);

  auto prepared = Prepare(*page);
  absl::Status status = prepared.status();
  if (status.ok()) {
    auto arrival = mover_->Submit(MoveOf(page, *prepared));
    status = arrival.status();
    if (status.ok()) (*prepared)->arrival_ = *std::move(arrival);
  }
  std::shared_ptr<DevicePage> replaced;  // let go after the lock
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) {
    ++stats_.refused_count;
    return status;
  }
  ++stats_.promoted_count;
  stats_.promoted_bytes += (*prepared)->bytes_;
  replaced = Take(record);
  // One that has failed already stays out; its holder sees it.
  const std::optional<absl::Status> result = (*prepared)->arrival_->result();
  if (!result.has_value() || result->ok()) {
    pages_[record] = {*prepared, uses_.insert(uses_.end(), record)};
  }
  return *prepared;
}

DevicePagePtr HbmTier::Find(const RecordKey& record) {
  absl::MutexLock lock(&mutex_);
  const auto it = pages_.find(record);
  if (it == pages_.end()) return nullptr;
  uses_.splice(uses_.end(), uses_, it->second.use);
  return it->second.page;
}

std::shared_ptr<DevicePage> HbmTier::Take(const RecordKey& record) {
  const auto it = pages_.find(record);
  if (it == pages_.end()) return nullptr;
  std::shared_ptr<DevicePage> page = std::move(it->second.page);
  uses_.erase(it->second.use);
  pages_.erase(it);
  return page;
}

void HbmTier::Drop(const RecordKey& record) {
  std::shared_ptr<DevicePage> gone;  // let go after the lock
  absl::MutexLock lock(&mutex_);
  gone = Take(record);
}

void HbmTier::DropAll() {
  absl::flat_hash_map<RecordKey, Entry> gone;  // let go after the lock
  absl::MutexLock lock(&mutex_);
  gone.swap(pages_);
  uses_.clear();
}

void HbmTier::Failed(const DevicePage* page) {
  std::shared_ptr<DevicePage> gone;  // let go after the lock
  absl::MutexLock lock(&mutex_);
  ++stats_.failed_count;
  const auto it = pages_.find(page->header().record);
  if (it != pages_.end() && it->second.page.get() == page) gone = Take(page->header().record);
}

bool HbmTier::EvictOne() {
  std::shared_ptr<DevicePage> gone;  // let go after the lock
  absl::MutexLock lock(&mutex_);
  for (const RecordKey& record : uses_) {
    // The tier's own reference alone: nobody can get another without the lock.
    if (pages_[record].page.use_count() > 1) continue;
    gone = Take(record);
    ++stats_.evicted_count;
    return true;
  }
  return false;
}

HbmTierStats HbmTier::stats() const {
  absl::MutexLock lock(&mutex_);
  HbmTierStats stats = stats_;
  stats.page_count = static_cast<int64_t>(pages_.size());
  for (const auto& [record, entry] : pages_) {
    ++stats.pages_by_precision[PrecisionOf(entry.page->header().planes)];
  }
  return stats;
}

}  // namespace pagoda
