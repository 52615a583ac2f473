// TieredStore: making room, and dropping pages on request.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/check.h"
#include "storage/base/log.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

// Between two slices of a long walk: who takes a Mutex again at once overtakes those that wait.
void LetOthersIn() { absl::SleepFor(absl::Microseconds(50)); }

}  // namespace

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
  sheds_.Settle(id);
  prefetch_.OnLeft(PageIdOf(id), entry.on_ssd(), clock_.Monotonic());
  // A write that is on its way to SSD would leave a page there that nobody knows of.
  if (!entry.on_ssd() && entry.queued) DeleteOnSsdLater(entry.record, after);
  NoteLeftHost(entry.record, after);
  after.pages.push_back(directory_.DropHost(id));
  after.freed_bytes += bytes;
  ++counters_.evictions[static_cast<int>(TierKind::kHost)][static_cast<int>(reason)]
                       [static_cast<int>(action)];
  if (action == EvictionAction::kDemote) counters_.demoted_bytes += bytes;
  after.events.push_back([reason, action, bytes](StoreObserver& o) {
    o.OnEvicted(TierKind::kHost, reason, action, bytes);
  });
}

void TieredStore::NoteLeftHost(const RecordKey& record, Aftermath& after) {
  if (on_left_host_ != nullptr) after.left_host.push_back(record);
}

void TieredStore::SetHostListener(std::function<void(const RecordKey&)> listener) {
  absl::MutexLock lock(&mutex_);
  on_left_host_ = std::move(listener);
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
    DeleteOnSsdLater(entry.record, after);
    DropSsd(id, reason, after);  // the entry goes with it unless a host copy is left
  }
  if (entry.host != nullptr) DropHost(id, reason, after);
}

void TieredStore::DeleteOnSsdLater(const RecordKey& key, Aftermath& after) {
  ++ssd_changes_;
  after.ssd_deletions.push_back(key);
}

void TieredStore::QueueDeletions(const std::vector<RecordKey>& keys) {
  {
    absl::MutexLock lock(&mutex_);
    deletions_.insert(deletions_.end(), keys.begin(), keys.end());
    deletions_asked_ += static_cast<int64_t>(keys.size());
    if (std::exchange(deleting_, true)) return;
  }
  // Behind every write of these keys that is queued. Not refused: a deletion holds no page.
  if (!writer_->PushAlways([this] { DeleteSome(); })) ForgetDeletions();
}

// A few at a time, so that writes do not wait for the end of a large tenant.
void TieredStore::DeleteSome() {
  constexpr int kKeys = 64;
  for (int i = 0; i < kKeys; ++i) {
    RecordKey key;
    {
      absl::MutexLock lock(&mutex_);
      if (deletions_.empty()) {
        deleting_ = false;
        return;
      }
      key = deletions_.front();
      deletions_.pop_front();
    }
    const absl::Status status = DeleteOnSsd(key);
    absl::MutexLock lock(&mutex_);
    --ssd_changes_;
    ++deletions_done_;
    ssd_refused_ |= !status.ok();
    if (!status.ok()) ++counters_.ssd_write_errors;
  }
  if (!writer_->PushAlways([this] { DeleteSome(); })) ForgetDeletions();
}

// The queue has stopped: the store is closing. What was not deleted comes back with the next start.
void TieredStore::ForgetDeletions() {
  absl::MutexLock lock(&mutex_);
  if (!deletions_.empty()) {
    LogWarning("ssd_deletions_dropped", {{"pages", absl::StrCat(deletions_.size())}});
    ssd_refused_ = true;
  }
  deletions_done_ += static_cast<int64_t>(deletions_.size());
  deletions_.clear();
  deleting_ = false;
}

bool TieredStore::AwaitDeletions(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const int64_t asked = deletions_asked_;
  const auto done = [&] {
    mutex_.AssertHeld();
    return deletions_done_ >= asked;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&done), timeout);
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
    }
    ShedHost();
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      DemoteHost(after);
      StartPrefetches(after);
    }
    Finish(after);
    ExpireLeases();
    CheckSsd();
    CompactIfFragmented();
  }
}

int64_t TieredStore::ExcessHostBytes() {
  const HostTierUsage usage = host_->usage();
  const int64_t excess_bytes = std::max(
      policies_.host.marks.ExcessBytes(usage.used_bytes, usage.capacity_bytes), pressure_bytes_);
  sheds_.NoteExcess(excess_bytes, clock_.Monotonic());
  return excess_bytes;
}

void TieredStore::DemoteHost(Aftermath& after) {
  const HostTierUsage usage = host_->usage();
  const policy::Watermarks& marks = policies_.host.marks;
  const absl::Duration now = clock_.Monotonic();
  int64_t need_bytes = ExcessHostBytes() - demoting_bytes_;
  const bool refused_push = pressure_bytes_ > 0;
  pressure_bytes_ = 0;
  // Pages that become smaller stand for pages that go, but not for long, and not at the hard mark.
  const bool shedding = !refused_push && sheds_.HoldsOff(now);
  if (shedding) {
    // What came since pages were asked waits until others are.
    if (shed_enough_ && now < next_shed_) return;
    need_bytes = sheds_.MissingBytes(need_bytes, now);
  }
  if (need_bytes <= 0) return;
  policy::EvictionGuard guard = GuardOf(TierKind::kHost, /*presser=*/nullptr);
  const std::vector<EntryId> victims =
      directory_.host_policy().PickVictims(need_bytes, [&](EntryId id) {
        mutex_.AssertHeld();
        // A page that is not on SSD yet may leave too: it is written first.
        const DirectoryEntry& entry = directory_.at(id);
        if (shedding && sheds_.asked(id)) return false;
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
  NoteLeftHost(entry.record, after);
  if (entry.on_ssd() || entry.queued) DeleteOnSsdLater(entry.record, after);
  if (entry.on_ssd()) DropSsd(id, EvictionReason::kIntegrity, after);
  lock.Release();
  Finish(after);
  return absl::OkStatus();
}

absl::StatusOr<EvictResult> TieredStore::Remove(const RecordKey& key, const ScopeId& scope) {
  SubtreeWalk::Found page;
  {
    absl::MutexLock lock(&mutex_);
    page.id = directory_.Find(key, scope);
    if (page.id == kNoEntry) return absl::NotFoundError("page: not stored");
    page.incarnation = directory_.at(page.id).incarnation;
    // A leaf, the common case, needs no walk over the directory.
    if (directory_.at(page.id).child_count > 0) page.depth = 1;
  }
  if (page.depth == 0) return DropInSlices({page}, PageFilter{});
  return EvictSubtrees(
      [&](EntryId id) {
        mutex_.AssertHeld();
        return id == page.id && directory_.at(id).incarnation == page.incarnation;
      },
      PageFilter{});
}

EvictResult TieredStore::Evict(const PageFilter& filter) {
  return EvictSubtrees(
      [&](EntryId id) {
        mutex_.AssertHeld();
        return directory_.at(id).alive() &&
               filter.Matches(directory_.InfoOf(id, clock_.Monotonic()));
      },
      filter);
}

EvictResult TieredStore::EvictSubtrees(absl::FunctionRef<bool(EntryId)> marks,
                                       const PageFilter& filter) {
  constexpr EntryId kSliceSlots = 1024;
  SubtreeWalk walk;
  for (EntryId begin = 1;; begin += kSliceSlots) {
    if (begin > 1) LetOthersIn();
    absl::MutexLock lock(&mutex_);
    if (begin >= directory_.slot_count()) break;
    walk.Scan(directory_, begin, begin + kSliceSlots, marks);
  }
  return DropInSlices(walk.Take(), filter);
}

EvictResult TieredStore::DropInSlices(absl::Span<const SubtreeWalk::Found> found,
                                      const PageFilter& filter) {
  constexpr size_t kSlicePages = 256;
  EvictResult result;
  std::vector<SubtreeWalk::Found> followed;
  const auto drop = [&](absl::Span<const SubtreeWalk::Found> some) {
    mutex_.AssertHeld();
    Aftermath after;
    for (const SubtreeWalk::Found& page : some) {
      if (!DropOne(page, filter, result, after)) followed.push_back(page);
    }
    return after;
  };
  for (size_t i = 0; i < found.size(); i += kSlicePages) {
    if (i > 0) LetOthersIn();
    Aftermath after;
    {
      absl::MutexLock lock(&mutex_);
      after = drop(found.subspan(i, kSlicePages));
    }
    Finish(after);
  }
  if (followed.empty()) return result;
  // Pages came behind these meanwhile, and go too, without another gap; or pages stay behind them.
  absl::flat_hash_map<EntryId, uint32_t> roots;
  for (const SubtreeWalk::Found& page : std::exchange(followed, {})) {
    roots.emplace(page.id, page.incarnation);
  }
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    SubtreeWalk walk;
    walk.Scan(directory_, 1, directory_.slot_count(), [&](EntryId id) {
      mutex_.AssertHeld();
      const auto root = roots.find(id);
      return root != roots.end() && root->second == directory_.at(id).incarnation;
    });
    after = drop(walk.Take());
  }
  Finish(after);
  return result;
}

// False when pages that follow it are in its way.
bool TieredStore::DropOne(const SubtreeWalk::Found& page, const PageFilter& filter,
                          EvictResult& result, Aftermath& after) {
  const DirectoryEntry& entry = directory_.at(page.id);
  if (!entry.alive() || entry.incarnation != page.incarnation) return true;
  const bool host = entry.host != nullptr && filter.tier != TierKind::kSsd;
  const bool ssd = entry.on_ssd() && filter.tier != TierKind::kHost;
  if (!host && !ssd) return true;
  if (filter.keep_locked && entry.locked()) return true;
  if ((host && directory_.host_policy().child_count(page.id) > 0) ||
      (ssd && directory_.ssd_policy().child_count(page.id) > 0)) {
    return false;
  }
  // Pages that follow it stay in the other tier, and need it.
  const bool last_copies = (host || entry.host == nullptr) && (ssd || !entry.on_ssd());
  if (last_copies && entry.child_count > 0) return true;
  ++result.page_count;
  if (host) result.host_bytes += entry.host->bytes();
  if (ssd) result.ssd_bytes += entry.ssd_bytes();
  if (host && ssd) {
    DropEntry(page.id, EvictionReason::kRequest, after);
  } else if (host) {
    DropHost(page.id, EvictionReason::kRequest, after);
  } else {
    DeleteOnSsdLater(entry.record, after);
    DropSsd(page.id, EvictionReason::kRequest, after);
  }
  return true;
}

}  // namespace pagoda
