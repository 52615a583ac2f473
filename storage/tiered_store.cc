// Opening, closing and looking at the store. Writing, reading, leases and eviction have their own
// files: tiered_store_write.cc, _read.cc, _lease.cc, _evict.cc, _shed.cc.
#include "storage/tiered_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/crash_point.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Minutes(2);

StoreObserver* NoObserver() {
  static StoreObserver* observer = new StoreObserver;
  return observer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TieredStore>> TieredStore::Open(const TieredStoreOptions& options,
                                                               const Clock& clock,
                                                               StoreObserver* observer) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<TieredStore> store(new TieredStore(options, clock, observer));
  PAGODA_ASSIGN_OR_RETURN(store->host_, HostTier::Create(options.host));
  PAGODA_RETURN_IF_ERROR(store->SetPolicies(options.policies));
  if (!options.ssd.path.empty()) {
    PAGODA_ASSIGN_OR_RETURN(store->ssd_, SsdTier::Open(options.ssd));
    PAGODA_RETURN_IF_ERROR(store->Rebuild());
  }
  store->StartThreads();
  return store;
}

// After that a page that was to become smaller is demoted like any other.
constexpr absl::Duration kShedPatience = absl::Seconds(1);

TieredStore::TieredStore(const TieredStoreOptions& options, const Clock& clock,
                         StoreObserver* observer)
    : options_(options),
      clock_(clock),
      observer_(observer != nullptr ? observer : NoObserver()),
      directory_(options.use_window),
      leases_(options.leases),
      breaker_(options.ssd_breaker),
      prefetch_(options.prefetch),
      sheds_(kShedPatience),
      move_budget_(options.compaction_bytes_per_second) {}

TieredStore::~TieredStore() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  StopThreads();
}

absl::Status TieredStore::Rebuild() {
  std::vector<std::string> damaged;
  std::vector<RecordKey> orphans;
  Aftermath after;
  PAGODA_RETURN_IF_ERROR(ssd_->ForEachRecord(
      [&](const DirectoryRecord& record) {
        absl::MutexLock lock(&mutex_);
        // A record that is its own ancestor was never written by us.
        if (!directory_.AddSsd(record, clock_.Monotonic()).ok()) orphans.push_back(record.record);
      },
      [&](absl::string_view key, const absl::Status&) { damaged.emplace_back(key); }));
  {
    absl::MutexLock lock(&mutex_);
    for (const EntryId id : directory_.Unreachable()) {
      orphans.push_back(directory_.at(id).record);
      DropSsd(id, EvictionReason::kOrphan, after);
    }
    const SsdOpenDamage& dropped = ssd_->open_damage();
    const auto damaged_count = static_cast<int64_t>(damaged.size());
    for (int64_t i = 0; i < damaged_count + dropped.overlapping_count; ++i) {
      CountIntegrity(TierKind::kSsd, IntegrityKind::kRecord, after);
    }
    if (dropped.index_lost) CountIntegrity(TierKind::kSsd, IntegrityKind::kIndex, after);
    for (int64_t i = 0; i < dropped.missing_count; ++i) {
      CountIntegrity(TierKind::kSsd, IntegrityKind::kMissing, after);
    }
  }
  CrashPoint(CrashAt::kRebuild);
  for (const std::string& key : damaged) PAGODA_RETURN_IF_ERROR(ssd_->DeleteDamaged(key));
  for (const RecordKey& key : orphans) PAGODA_RETURN_IF_ERROR(ssd_->Delete(key));
  Finish(after);
  absl::MutexLock lock(&mutex_);
  PAGODA_CHECK(directory_.ssd_bytes() == ssd_->used_bytes());
  LogInfo("directory_rebuilt", {{"pages", absl::StrCat(directory_.page_count())},
                                {"bytes", absl::StrCat(directory_.ssd_bytes())},
                                {"orphans_deleted", absl::StrCat(orphans.size())},
                                {"damaged_deleted", absl::StrCat(damaged.size())}});
  return absl::OkStatus();
}

void TieredStore::StartThreads() {
  if (ssd_ != nullptr) {
    writer_ = std::make_unique<WorkQueue>(options_.writer_threads, options_.write_queue_pages_max);
    loader_ = std::make_unique<WorkQueue>(options_.loader_threads, options_.load_queue_max);
    writer_->PushAlways([this] {
      MakeSsdRoom(0, /*presser=*/nullptr);
    });  // the capacity may be smaller than it was
  }
  demoter_ = std::thread([this] { DemotionLoop(); });
}

void TieredStore::StopThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (demoter_.joinable()) demoter_.join();
  if (loader_ != nullptr) loader_->Stop();
  if (writer_ != nullptr) {
    writer_->Stop();
    ForgetDeletions();
  }
  AnswerPendingLoads();
}

void TieredStore::AnswerPendingLoads() {
  absl::flat_hash_map<RecordKey, Load> loads;
  {
    absl::MutexLock lock(&mutex_);
    loads.swap(loads_);
  }
  for (const auto& [key, load] : loads) {
    for (const LoadCallback& callback : load.waiters) {
      callback(absl::UnavailableError("store: shutting down"));
    }
  }
}

void TieredStore::Finish(Aftermath& after) {
#ifndef NDEBUG
  {
    absl::MutexLock lock(&mutex_);
    const absl::Status exact = CheckTotals();
    if (!exact.ok()) LogError("accounting_broken", {{"error", exact.ToString()}});
    PAGODA_CHECK(exact.ok());
  }
#endif
  after.pages.clear();
  if (!after.left_host.empty()) {
    std::function<void(const RecordKey&)> listener;
    {
      absl::MutexLock lock(&mutex_);
      listener = on_left_host_;  // may have gone since the pages were noted
    }
    for (const RecordKey& record : std::exchange(after.left_host, {})) {
      if (listener != nullptr) listener(record);
    }
  }
  if (!after.ssd_deletions.empty()) QueueDeletions(std::exchange(after.ssd_deletions, {}));
  for (const auto& event : after.events) event(*observer_);
  after.events.clear();
}

absl::Status TieredStore::Flush() {
  if (ssd_ == nullptr) return absl::OkStatus();
  // Twice, because a write that ends may queue the page's next encoding behind the first mark.
  for (int i = 0; i < 2; ++i) {
    if (!writer_->WaitForEarlier(kFlushTimeout) || !AwaitDeletions(kFlushTimeout)) {
      return absl::UnavailableError(absl::StrCat("ssd: changes still wait for the disk after ",
                                                 absl::FormatDuration(kFlushTimeout)));
    }
  }
  return ssd_->Flush();
}

absl::Status TieredStore::Shutdown(absl::Duration deadline) {
  const absl::Duration end = clock_.Monotonic() + deadline;
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return absl::OkStatus();
    closing_ = true;
    stopping_ = true;
    std::vector<LeasedPage> released;
    leases_.Expire(absl::InfiniteDuration(), released);
    Unlease(std::move(released), after);
  }
  Finish(after);
  if (writer_ != nullptr) writer_->Drain(deadline);
  StopThreads();
  if (ssd_ == nullptr) return absl::OkStatus();
  CrashPoint(CrashAt::kShutdown);

  // Roots first: a page whose parent was not written is of no use after the restart.
  struct Dirty {
    uint64_t base_position;
    RecordKey key;
    uint64_t incarnation;
  };
  std::vector<Dirty> dirty;
  {
    absl::MutexLock lock(&mutex_);
    for (EntryId id = 1; id < directory_.slot_count(); ++id) {
      const DirectoryEntry& entry = directory_.at(id);
      if (entry.alive() && entry.dirty && !entry.quarantined) {
        dirty.push_back({entry.base_position, entry.record, entry.incarnation});
      }
    }
    demoting_.clear();
    demoting_bytes_ = 0;
  }
  std::sort(dirty.begin(), dirty.end(),
            [](const Dirty& a, const Dirty& b) { return a.base_position < b.base_position; });
  size_t tried = 0;
  for (; tried < dirty.size() && clock_.Monotonic() < end; ++tried) {
    WritePage(dirty[tried].key, dirty[tried].incarnation);
  }
  const absl::Status flushed = ssd_->Flush();
  absl::MutexLock lock(&mutex_);
  LogInfo("store_shut_down", {{"pages_written", absl::StrCat(tried)},
                              {"pages_lost", absl::StrCat(directory_.dirty_count())},
                              {"ssd_pages", absl::StrCat(ssd_->page_count())}});
  return flushed;
}

void TieredStore::ForEachPage(absl::FunctionRef<void(const PageInfo&)> callback) {
  ScanPages(/*begin=*/1, [&](const PageInfo& info) {
    callback(info);
    return true;
  });
}

EntryId TieredStore::ScanPages(EntryId begin, absl::FunctionRef<bool(const PageInfo&)> callback) {
  constexpr EntryId kBatch = 1024;  // slots under one lock
  std::vector<std::pair<EntryId, PageInfo>> batch;
  bool around = false;
  for (EntryId next = begin;;) {
    batch.clear();
    {
      absl::MutexLock lock(&mutex_);
      if (!around && next >= directory_.slot_count()) {
        around = true;
        next = 1;
      }
      const EntryId last =
          around ? std::min(begin, directory_.slot_count()) : directory_.slot_count();
      if (next >= last) return begin;
      const absl::Duration now = clock_.Monotonic();
      const EntryId end = std::min<EntryId>(last, next + kBatch);
      for (; next < end; ++next) {
        if (!directory_.at(next).alive()) continue;
        batch.emplace_back(next, directory_.InfoOf(next, now));
        batch.back().second.to_write = MayWriteEarly(next);
      }
    }
    for (const auto& [id, info] : batch) {
      if (!callback(info)) return id;
    }
  }
}

std::optional<absl::Duration> TieredStore::IdleTime(const RecordKey& key,
                                                    const ScopeId& scope) const {
  absl::MutexLock lock(&mutex_);
  const EntryId id = directory_.Find(key, scope);
  if (id == kNoEntry) return std::nullopt;
  return directory_.InfoOf(id, clock_.Monotonic()).idle;
}

StoreStats TieredStore::Stats() {
  StoreStats stats;
  {
    absl::MutexLock lock(&mutex_);
    directory_.FillStats(stats);
    stats.counters = counters_;
    stats.lease_count = leases_.lease_count();
    stats.directory_memory_bytes = directory_.memory_bytes();
    FillTierStats(stats);
    stats.ssd_breaker = breaker_.state();
    stats.prefetch = prefetch_.counters();
  }
  stats.staged_page_count = staged_page_count_->load(std::memory_order_relaxed);
  if (ssd_ == nullptr) return stats;
  stats.write_queue_count = writer_->waiting_count();
  stats.load_queue_count = loader_->waiting_count();
  stats.unflushed_count = ssd_->unflushed_count();
  stats.ssd_file_bytes = ssd_->file_bytes();
  return stats;
}

}  // namespace pagoda
