#include "storage/hbm_tier.h"

#include <algorithm>
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
    while (absl::IsResourceExhausted(slab.status()) && MakeRoom(page.header().scope, bytes)) {
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
  // The move keeps the page until then.
  move.done = [this, target = target.get()](const absl::Status& status) { Ended(*target, status); };
  return move;
}

absl::StatusOr<DevicePagePtr> HbmTier::Promote(const HostPagePtr& page, bool keep) {
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
  if (!keep) return *prepared;
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

void HbmTier::Drop(const DevicePage& page) {
  std::shared_ptr<DevicePage> gone;  // let go after the lock
  absl::MutexLock lock(&mutex_);
  const auto it = pages_.find(page.header().record);
  if (it != pages_.end() && it->second.page.get() == &page) gone = Take(page.header().record);
}

void HbmTier::DropAll() {
  absl::flat_hash_map<RecordKey, Entry> gone;  // let go after the lock
  absl::MutexLock lock(&mutex_);
  gone.swap(pages_);
  uses_.clear();
}

void HbmTier::Ended(const DevicePage& page, const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok()) {
      ++stats_.promoted_count;
      stats_.promoted_bytes += page.bytes_;
      return;
    }
    ++stats_.failed_count;
  }
  Drop(page);
}

bool HbmTier::MayGo(const Entry& entry) const {
  // The tier's own reference alone: nobody can get another without the lock.
  return entry.page.use_count() == 1 && pool_->AreUnread(entry.page->slabs_);
}

std::set<uint32_t> HbmTier::ChunksToEmpty(const ScopeId& scope) const {
  std::vector<std::optional<size_t>> in_the_way = pool_->SlabsInTheWay(scope);
  for (const auto& [record, entry] : pages_) {
    if (!MayGo(entry)) continue;
    for (const DeviceSlab& slab : entry.page->slabs_) {
      std::optional<size_t>& left = in_the_way[slab.place().chunk];
      if (left.has_value() && *left > 0) --*left;
    }
  }
  std::set<uint32_t> chunks;
  for (uint32_t chunk = 0; chunk < in_the_way.size(); ++chunk) {
    if (in_the_way[chunk] == size_t{0}) chunks.insert(chunk);
  }
  return chunks;
}

bool HbmTier::MakeRoom(const ScopeId& scope, int64_t bytes) {
  std::vector<std::shared_ptr<DevicePage>> gone;  // let go after the lock
  absl::MutexLock lock(&mutex_);
  std::optional<std::set<uint32_t>> chunks;  // counted only when one is needed
  std::optional<uint32_t> emptied;
  std::vector<RecordKey> leaving;
  for (const RecordKey& record : uses_) {
    const Entry& entry = pages_.find(record)->second;
    const std::vector<DeviceSlab>& slabs = entry.page->slabs_;
    const auto lies_in = [&](uint32_t chunk) {
      return std::any_of(slabs.begin(), slabs.end(),
                         [chunk](const DeviceSlab& slab) { return slab.place().chunk == chunk; });
    };
    // Once a chunk is chosen, all of its pages go and no others.
    if (emptied.has_value()) {
      if (lies_in(*emptied)) leaving.push_back(record);
      continue;
    }
    if (!MayGo(entry)) continue;
    const bool own = entry.page->header().scope == scope &&
                     std::any_of(slabs.begin(), slabs.end(),
                                 [bytes](const DeviceSlab& slab) { return slab.bytes() == bytes; });
    if (own) {
      leaving.push_back(record);
      break;
    }
    if (!chunks.has_value()) chunks = ChunksToEmpty(scope);
    const auto found = std::find_if(chunks->begin(), chunks->end(), lies_in);
    if (found == chunks->end()) continue;
    emptied = *found;
    leaving.push_back(record);
  }
  for (const RecordKey& record : leaving) gone.push_back(Take(record));
  stats_.evicted_count += static_cast<int64_t>(gone.size());
  return !gone.empty();
}

HbmTierStats HbmTier::stats() const {
  absl::MutexLock lock(&mutex_);
  HbmTierStats stats = stats_;
  stats.page_count = static_cast<int64_t>(pages_.size());
  for (const auto& [record, entry] : pages_) {
    stats.page_bytes += entry.page->bytes();
    ++stats.pages_by_precision[PrecisionOf(entry.page->header().planes)];
  }
  return stats;
}

}  // namespace pagoda
