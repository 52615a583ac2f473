// TieredStore: making room, and dropping pages on request.
#include <algorithm>

#include "storage/base/check.h"
#include "storage/tiered_store.h"

namespace pagoda {

// ---- Single drops -------------------------------------------------------------------------------

void TieredStore::ForgetDemotion(EntryId id) {
  const auto it = demoting_.find(id);
  if (it == demoting_.end()) return;
  demoting_bytes_ -= it->second;
  demoting_.erase(it);
}

void TieredStore::DropHost(EntryId id, EvictionReason reason, Aftermath& after) {
  const DirectoryEntry& entry = directory_.at(id);
  const int64_t bytes = entry.host->bytes();
  const EvictionAction action = entry.on_ssd() ? EvictionAction::kDemote : EvictionAction::kDrop;
  ForgetDemotion(id);
  prefetch_.OnLeft(PageIdOf(id), entry.on_ssd(), clock_.Monotonic());
  // A write that is on its way to SSD would leave a page there that nobody knows of.
  if (!entry.on_ssd() && entry.queued) DeleteOnSsdLater(entry.record);
  after.pages.push_back(directory_.DropHost(id));
  after.freed_bytes += bytes;
  ++counters_.evictions[static_cast<int>(TierKind::kHost)][static_cast<int>(reason)]
                       [static_cast<int>(action)];
  if (action == EvictionAction::kDemote) counters_.demoted_bytes += bytes;
  after.events.push_back([reason, action, bytes](StoreObserver& o) {
    o.OnEvicted(TierKind::kHost, reason, action, bytes);
  });
}

void TieredStore::DropSsd(EntryId id, EvictionReason reason, Aftermath& after) {
  const int64_t bytes = directory_.at(id).ssd_bytes();
  directory_.DropSsd(id);
  ++counters_.evictions[static_cast<int>(TierKind::kSsd)][static_cast<int>(reason)]
                       [static_cast<int>(EvictionAction::kDrop)];
  after.events.push_back([reason, bytes](StoreObserver& o) {
    o.OnEvicted(TierKind::kSsd, reason, EvictionAction::kDrop, bytes);
  });
}

void TieredStore::DropEntry(EntryId id, EvictionReason reason, Aftermath& after) {
  const DirectoryEntry& entry = directory_.at(id);
  if (entry.on_ssd()) {
    DeleteOnSsdLater(entry.record);
    DropSsd(id, reason, after);  // the entry goes with it unless a host copy is left
  }
  if (entry.host != nullptr) DropHost(id, reason, after);
}

void TieredStore::DeleteOnSsdLater(const RecordKey& key) {
  // Behind every write of this key that is queued. Not refused: a deletion holds no page.
  ++ssd_changes_;
  writer_->PushAlways([this, key] {
    const absl::Status status = DeleteOnSsd(key);
    absl::MutexLock lock(&mutex_);
    --ssd_changes_;
    ssd_refused_ |= !status.ok();
    if (!status.ok()) ++counters_.ssd_write_errors;
  });
}

void TieredStore::CountIntegrity(TierKind tier, IntegrityKind kind, Aftermath& after) {
  ++counters_.integrity_failures[static_cast<int>(tier)][static_cast<int>(kind)];
  after.events.push_back([tier, kind](StoreObserver& o) { o.OnIntegrityFailure(tier, kind); });
}

// ---- Making room --------------------------------------------------------------------------------

bool TieredStore::MayLeaveHost(EntryId id) const {
  const DirectoryEntry& entry = directory_.at(id);
  if (entry.host.use_count() > 1) return false;  // somebody reads it: nothing would be freed
  if (demoting_.contains(id)) return false;
  // The last copy goes only when no page that follows it stays elsewhere.
  return entry.on_ssd() || entry.child_count == directory_.host_policy().child_count(id);
}

bool TieredStore::NeedsWriting(EntryId id) const {
  const DirectoryEntry& entry = directory_.at(id);
  return ssd_ != nullptr && entry.dirty && !entry.quarantined;
}

// When a victim was picked, those that follow it were to go first. They may have stayed: here, if
// their write was refused, or on SSD, where they need it too.
bool TieredStore::IsLastOfItsChain(EntryId id) const {
  const DirectoryEntry& entry = directory_.at(id);
  return directory_.host_policy().child_count(id) == 0 &&
         (entry.on_ssd() || entry.child_count == 0);
}

int64_t TieredStore::MakeRoom(int64_t bytes, const ScopeId& presser) {
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    policy::EvictionGuard guard = GuardOf(TierKind::kHost, &presser);
    const std::vector<EntryId> victims =
        directory_.host_policy().PickVictims(bytes, [&](EntryId id) {
          mutex_.AssertHeld();
          return MayLeaveHost(id) && !NeedsWriting(id) &&
                 guard.MayTake(CandidateOf(TierKind::kHost, id));
        });
    for (const EntryId id : victims) {
      if (IsLastOfItsChain(id)) DropHost(id, EvictionReason::kPressure, after);
    }
  }
  const int64_t freed_bytes = after.freed_bytes;
  Finish(after);
  return freed_bytes;
}

void TieredStore::DemotionLoop() {
  while (true) {
    Aftermath after;
    {
      absl::MutexLock lock(&mutex_);
      const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || demotion_asked_ || prefetch_asked_;
      };
      mutex_.AwaitWithTimeout(absl::Condition(&wake), options_.demotion_period);
      if (stopping_) return;
      demotion_asked_ = false;
      prefetch_asked_ = false;
      DemoteHost(after);
      StartPrefetches(after);
    }
    Finish(after);
    ExpireLeases();
    CheckSsd();
    CompactIfFragmented();
  }
}

void TieredStore::DemoteHost(Aftermath& after) {
  const HostTierUsage usage = host_->usage();
  const policy::Watermarks& marks = policies_.host.marks;
  const int64_t wanted_bytes =
      std::max(marks.ExcessBytes(usage.used_bytes, usage.capacity_bytes), pressure_bytes_);
  const bool refused_push = pressure_bytes_ > 0;
  pressure_bytes_ = 0;
  const int64_t need_bytes = wanted_bytes - demoting_bytes_;
  if (need_bytes <= 0) return;
  policy::EvictionGuard guard = GuardOf(TierKind::kHost, /*presser=*/nullptr);
  const std::vector<EntryId> victims =
      directory_.host_policy().PickVictims(need_bytes, [&](EntryId id) {
        mutex_.AssertHeld();
        // A page that is not on SSD yet may leave too: it is written first.
        const DirectoryEntry& entry = directory_.at(id);
        const bool free = MayLeaveHost(id) || (ssd_ != nullptr && entry.host.use_count() == 1 &&
                                               !demoting_.contains(id));
        return free && guard.MayTake(CandidateOf(TierKind::kHost, id));
      });
  bool refused = false;
  // A push that was refused is at the hard mark. A busy disk makes room soon; one that is set aside
  // does not.
  const bool beyond_hard = marks.ShortBytes(usage.used_bytes, 0, usage.capacity_bytes) > 0 ||
                           (refused_push && !breaker_.closed());
  for (const EntryId id : victims) {
    const DirectoryEntry& entry = directory_.at(id);
    if (!NeedsWriting(id)) {
      if (IsLastOfItsChain(id)) DropHost(id, EvictionReason::kWatermark, after);
      continue;
    }
    if (!Admitted(id)) {
      if (IsLastOfItsChain(id)) DropHost(id, EvictionReason::kNotAdmitted, after);
      continue;
    }
    if (QueueWrite(id)) {
      demoting_.emplace(id, entry.host->bytes());
      demoting_bytes_ += entry.host->bytes();
      continue;
    }
    // The queue is full or the disk is set aside. There is time until the hard mark; beyond it the
    // cache forgets.
    if (!refused) after.events.push_back([](StoreObserver& o) { o.OnWriteQueueFull(); });
    refused = true;
    if (!beyond_hard) continue;
    const bool last = entry.child_count == 0 && directory_.host_policy().child_count(id) == 0;
    if (last) DropHost(id, EvictionReason::kSsdFailed, after);
  }
}

// ---- On request ---------------------------------------------------------------------------------

absl::Status TieredStore::Pin(const RecordKey& key, const ScopeId& scope) {
  absl::MutexLock lock(&mutex_);
  const EntryId id = directory_.Find(key, scope);
  if (id == kNoEntry) return absl::NotFoundError("page: not stored");
  directory_.SetPinned(id, true);
  return absl::OkStatus();
}

absl::Status TieredStore::Unpin(const RecordKey& key, const ScopeId& scope) {
  absl::MutexLock lock(&mutex_);
  const EntryId id = directory_.Find(key, scope);
  if (id == kNoEntry) return absl::NotFoundError("page: not stored");
  directory_.SetPinned(id, false);
  return absl::OkStatus();
}

absl::Status TieredStore::Quarantine(const RecordKey& key, const ScopeId& scope) {
  Aftermath after;
  absl::ReleasableMutexLock lock(&mutex_);
  const EntryId id = directory_.Find(key, scope);
  if (id == kNoEntry) return absl::NotFoundError("page: not stored");
  directory_.SetQuarantined(id, true);
  // A restart forgets the mark, so it must not find the page.
  const DirectoryEntry& entry = directory_.at(id);
  if (entry.on_ssd() || entry.queued) DeleteOnSsdLater(entry.record);
  if (entry.on_ssd()) DropSsd(id, EvictionReason::kIntegrity, after);
  lock.Release();
  Finish(after);
  return absl::OkStatus();
}

absl::StatusOr<EvictResult> TieredStore::Remove(const RecordKey& key, const ScopeId& scope) {
  Aftermath after;
  EvictResult result;
  {
    absl::MutexLock lock(&mutex_);
    const EntryId id = directory_.Find(key, scope);
    if (id == kNoEntry) return absl::NotFoundError("page: not stored");
    // A leaf, the common case, needs no walk over the directory.
    std::vector<EntryId> ids = {id};
    if (directory_.at(id).child_count > 0) {
      ids = directory_.Subtrees([id](EntryId other) { return other == id; });
    }
    result = DropAll(ids, PageFilter{}, after);
  }
  Finish(after);
  return result;
}

EvictResult TieredStore::Evict(const PageFilter& filter) {
  Aftermath after;
  EvictResult result;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Monotonic();
    const std::vector<EntryId> ids = directory_.Subtrees([&](EntryId id) {
      mutex_.AssertHeld();
      return filter.Matches(directory_.InfoOf(id, now));
    });
    result = DropAll(ids, filter, after);
  }
  Finish(after);
  return result;
}

EvictResult TieredStore::DropAll(absl::Span<const EntryId> ids, const PageFilter& filter,
                                 Aftermath& after) {
  EvictResult result;
  for (const EntryId id : ids) {  // leaves first
    const DirectoryEntry& entry = directory_.at(id);
    const bool host = entry.host != nullptr && filter.tier != TierKind::kSsd;
    const bool ssd = entry.on_ssd() && filter.tier != TierKind::kHost;
    if (!host && !ssd) continue;
    if (filter.keep_locked) {
      // What stays keeps its ancestors.
      const bool followed = (host && directory_.host_policy().child_count(id) > 0) ||
                            (ssd && directory_.ssd_policy().child_count(id) > 0);
      if (entry.locked() || followed) continue;
    }
    const int64_t host_bytes = host ? entry.host->bytes() : 0;
    const int64_t ssd_bytes = ssd ? entry.ssd_bytes() : 0;
    if (host && ssd) {
      DropEntry(id, EvictionReason::kRequest, after);
    } else if (host) {
      DropHost(id, EvictionReason::kRequest, after);
    } else {
      DeleteOnSsdLater(entry.record);
      DropSsd(id, EvictionReason::kRequest, after);
    }
    ++result.page_count;
    result.host_bytes += host_bytes;
    result.ssd_bytes += ssd_bytes;
  }
  return result;
}

}  // namespace pagoda
