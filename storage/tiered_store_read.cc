// TieredStore: looking up, and loading from SSD.
#include <algorithm>

#include "storage/base/check.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

constexpr int kLoadTriesMax = 3;  // a page that changes on SSD under three reads in a row is odd

}  // namespace

std::optional<TieredStore::FoundCopy> TieredStore::FindCopy(EntryId id,
                                                            const LookupQuery& query) const {
  const auto serves = [&query](const CopyInfo& copy) {
    return copy.bytes > 0 && copy.precision >= query.precision_min &&
           copy.fidelity >= query.fidelity_min;
  };
  const DirectoryEntry& entry = directory_.at(id);
  if (entry.host != nullptr && serves(directory_.best_copy_of(id))) {
    return FoundCopy{directory_.best_copy_of(id), /*ready=*/true};
  }
  // What memory has given up may still be on SSD. A dirty page is another one there.
  if (!breaker_.closed() || entry.dirty || !serves(directory_.ssd_copy_of(id))) {
    return std::nullopt;
  }
  return FoundCopy{directory_.ssd_copy_of(id), /*ready=*/false};
}

HostPagePtr TieredStore::GoodEnough(EntryId id, Precision at_least) const {
  const DirectoryEntry& entry = directory_.at(id);
  if (entry.host == nullptr || entry.host->precision() >= at_least) return entry.host;
  const bool better = entry.on_ssd() && !entry.dirty && breaker_.closed() &&
                      directory_.ssd_copy_of(id).precision > entry.host->precision();
  return better ? nullptr : entry.host;
}

absl::StatusOr<LookupAnswer> TieredStore::LookupPrefix(const LookupQuery& query) {
  LookupAnswer answer;
  absl::Status status;
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Monotonic();
    std::vector<EntryId> ids;
    std::vector<Precision> at_least;  // of each page, in memory
    ids.reserve(query.keys.size());
    answer.pages.reserve(query.keys.size());
    for (const RecordKey& key : query.keys) {
      const EntryId id = closing_ ? kNoEntry : directory_.Find(key, query.scope);
      if (id == kNoEntry || directory_.at(id).quarantined) break;
      if (query.identity.has_value() && directory_.identity_of(id) != *query.identity) break;
      const DirectoryEntry& entry = directory_.at(id);
      const std::optional<FoundCopy> found = FindCopy(id, query);
      if (!found.has_value()) break;
      const CopyInfo& copy = found->copy;
      const bool ready = found->ready;
      answer.pages.push_back({ready ? TierKind::kHost : TierKind::kSsd,
                              ready ? PageState::kReady : PageState::kLoading, copy.precision,
                              copy.fidelity, copy.planes, copy.bytes, entry.base_position,
                              directory_.traits_of(id).page_tokens});
      ids.push_back(id);
      // What was named, not what was found: a form in between may take its place.
      at_least.push_back(ready ? Precision::kNone : query.precision_min);
    }
    // Who asks again while pages load, or to renew, uses them once.
    const bool asked_before = !query.lease.session_id.empty() &&
                              leases_.HasRequest(query.lease.session_id, query.lease.request_id);
    if (query.touch && !asked_before) {
      // Leaf first, so that a parent is never older than what follows it.
      for (auto id = ids.rbegin(); id != ids.rend(); ++id) directory_.Touch(*id, now);
      ObserveLookup(query, ids);
    }
    if (!query.lease.session_id.empty()) {
      if (ids.empty()) {
        std::vector<LeasedPage> released;
        leases_.ReleaseRequest(query.lease.session_id, query.lease.request_id, released);
        Unlease(std::move(released), after);
      } else {
        auto lease = GrantLease(query.scope, ids, at_least, query.lease, after);
        status = lease.status();
        if (lease.ok()) answer.lease = *lease;
      }
    }
  }
  Finish(after);
  if (!status.ok()) return status;
  return answer;
}

HostPagePtr TieredStore::GetResident(const RecordKey& key, const ScopeId& scope) {
  absl::MutexLock lock(&mutex_);
  const EntryId id = directory_.Find(key, scope);
  if (id == kNoEntry || directory_.at(id).quarantined || closing_) return nullptr;
  return directory_.at(id).host;
}

TieredStore::LoadStep TieredStore::BeginLoad(const RecordKey& key, const ScopeId& scope,
                                             Precision at_least, LoadCallback& callback,
                                             absl::StatusOr<HostPagePtr>& answer) {
  const EntryId id = directory_.Find(key, scope);
  if (closing_) {
    answer = absl::UnavailableError("store: shutting down");
    return LoadStep::kAnswered;
  }
  if (id == kNoEntry || directory_.at(id).quarantined) {
    answer = absl::NotFoundError("page: not stored");
    return LoadStep::kAnswered;
  }
  if (const HostPagePtr host = GoodEnough(id, at_least)) {
    answer = host;
    return LoadStep::kAnswered;
  }
  if (!breaker_.closed()) {
    answer = DiskSetAside();
    return LoadStep::kAnswered;
  }
  const absl::Duration now = clock_.Monotonic();
  const auto running = loads_.find(key);
  if (running == loads_.end()) {
    Load& load = loads_[key];
    load.deadline = now + options_.load_timeout;
    load.demanded = true;
    load.at_least = at_least;
    load.waiters.push_back(std::move(callback));
    return LoadStep::kNew;
  }
  if (now >= running->second.deadline) {
    answer = absl::UnavailableError("ssd: a read of this page is under way and does not end");
    return LoadStep::kAnswered;
  }
  running->second.waiters.push_back(std::move(callback));
  running->second.demanded = true;
  running->second.at_least = std::max(running->second.at_least, at_least);
  ++counters_.loads_joined;
  return LoadStep::kJoined;
}

void TieredStore::LoadAsync(const RecordKey& key, const ScopeId& scope, LoadCallback callback,
                            Precision at_least) {
  absl::StatusOr<HostPagePtr> answer = absl::UnknownError("");
  {
    absl::MutexLock lock(&mutex_);
    const LoadStep step = BeginLoad(key, scope, at_least, callback, answer);
    if (step == LoadStep::kJoined) return;
    if (step == LoadStep::kNew) {
      const auto load = loads_.find(key);
      if (loader_->TryPush([this, key] { RunLoad(key); })) {
        load_deadlines_.emplace_back(load->second.deadline, key);
        ++counters_.loads_started;
        return;
      }
      callback = std::move(load->second.waiters.front());
      loads_.erase(load);
      ++counters_.load_queue_refusals;
      answer = absl::ResourceExhaustedError("ssd: the queue of loads is full");
    }
  }
  callback(std::move(answer));
}

void TieredStore::LoadLeased(absl::string_view session_id, LeaseId id, const RecordKey& key,
                             LoadCallback callback) {
  absl::StatusOr<ScopeId> scope = absl::NotFoundError("lease: ended, or does not name this page");
  Precision at_least = Precision::kNone;
  {
    absl::MutexLock lock(&mutex_);
    Lease* lease = leases_.Find(session_id, id, clock_.Monotonic());
    const LeasedPage* page = lease == nullptr ? nullptr : lease->FindPage(key);
    if (page != nullptr) {
      scope = lease->scope;
      at_least = page->at_least;
    }
  }
  if (!scope.ok()) return callback(scope.status());
  LoadAsync(
      key, *scope,
      [callback = std::move(callback), at_least](absl::StatusOr<HostPagePtr> loaded) {
        // The better copy may be gone, or its disk set aside: not what the lookup named.
        if (loaded.ok() && (*loaded)->precision() < at_least) {
          loaded = absl::NotFoundError("page: only a lower form is left");
        }
        callback(std::move(loaded));
      },
      at_least);
}

std::optional<absl::StatusOr<HostPagePtr>> TieredStore::BeforeRead(const RecordKey& key,
                                                                   Source& source, uint64_t& work) {
  absl::MutexLock lock(&mutex_);
  const EntryId id = directory_.Find(key);
  if (closing_) return absl::UnavailableError("store: shutting down");
  if (id == kNoEntry) return absl::NotFoundError("page: dropped meanwhile");
  if (HostPagePtr host = GoodEnough(id, loads_.at(key).at_least)) return host;
  if (!breaker_.closed()) return DiskSetAside();
  const DirectoryEntry& entry = directory_.at(id);
  work = BeginDiskWork();
  source = {directory_.scope_of(id), directory_.identity_of(id), entry.incarnation,
            entry.ssd_version, loads_.at(key).demanded};
  return std::nullopt;
}

void TieredStore::RunLoad(const RecordKey& key) {
  absl::StatusOr<HostPagePtr> result = absl::AbortedError("page: it changes faster than it loads");
  Aftermath after;
  for (int i = 0; i < kLoadTriesMax; ++i) {
    Source source;
    uint64_t work = 0;
    if (auto settled = BeforeRead(key, source, work)) {
      result = *std::move(settled);
      break;
    }
    absl::StatusOr<HostPagePtr> read = ReadFromSsd(key, source);
    absl::MutexLock lock(&mutex_);
    EndDiskWork(work, read.status(), after);
    // A request has joined meanwhile: for it room is made.
    const bool no_room = absl::IsResourceExhausted(read.status());
    if (no_room && loads_.at(key).demanded != source.demanded) continue;
    if (SettleLoad(key, source, read, after)) {
      result = std::move(read);
      break;
    }
  }
  Finish(after);
  EndLoad(key, result);
}

void TieredStore::EndLoad(const RecordKey& key, const absl::StatusOr<HostPagePtr>& result) {
  Load load;
  std::function<void(const RecordKey&, const ScopeId&)> on_prefetched;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = loads_.find(key);
    PAGODA_CHECK(it != loads_.end());
    load = std::move(it->second);
    loads_.erase(it);
    prefetch_reserved_bytes_ -= load.reserved_bytes;
    if (load.prefetched != prefetch::kNoPage) {
      prefetch_.OnLoaded(load.prefetched, result.ok());
      if (prefetch_.has_work()) prefetch_asked_ = true;
      on_prefetched = on_prefetched_;
    }
  }
  if (on_prefetched != nullptr && result.ok()) on_prefetched(key, (*result)->header().scope);
  for (const LoadCallback& callback : load.waiters) callback(result);
}

absl::StatusOr<HostPagePtr> TieredStore::ReadFromSsd(const RecordKey& key, const Source& source) {
  PAGODA_ASSIGN_OR_RETURN(const SsdTier::Reader reader,
                          ssd_->ReadPage(key, source.scope, source.identity));
  PAGODA_ASSIGN_OR_RETURN(StagedPage page, StageWithRoom(reader.header(), source.demanded));
  const absl::Duration start = clock_.Monotonic();
  std::vector<MutableByteSpan> targets;
  for (size_t i = 0; i < page.segment_count(); ++i) targets.push_back(page.padded_segment(i));
  const absl::Status status = reader.ReadAll(targets);
  observer_->OnSsdRead(clock_.Monotonic() - start, page.bytes(), status.ok());
  PAGODA_RETURN_IF_ERROR(status);
  return StagedPage::Freeze(std::move(page));
}

bool TieredStore::SettleLoad(const RecordKey& key, const Source& source,
                             absl::StatusOr<HostPagePtr>& result, Aftermath& after) {
  const EntryId id = directory_.Find(key);
  if (id == kNoEntry) {
    result = absl::NotFoundError("page: dropped meanwhile");
    return true;
  }
  const DirectoryEntry& entry = directory_.at(id);
  if (const HostPagePtr host = GoodEnough(id, loads_.at(key).at_least)) {
    result = host;  // pushed, or encoded anew, meanwhile
    return true;
  }
  if (entry.incarnation != source.incarnation || entry.ssd_version != source.ssd_version) {
    return false;
  }
  if (result.ok()) {
    if (entry.host != nullptr) {  // a lower form makes way
      ForgetDemotion(id);
      sheds_.Settle(id);
    }
    HostPagePtr lower = directory_.SetHost(id, *result, /*dirty=*/false);
    if (lower != nullptr) {
      NoteLeftHost(key, after);
      after.pages.push_back(std::move(lower));
    }
    counters_.ssd_read_bytes += (*result)->bytes();
    counters_.promoted_bytes += (*result)->bytes();
    after.events.push_back([bytes = (*result)->bytes()](StoreObserver& o) { o.OnPromoted(bytes); });
    return true;
  }
  const absl::StatusCode code = result.status().code();
  if (code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kNotFound) {
    const IntegrityKind kind = code == absl::StatusCode::kNotFound
                                   ? IntegrityKind::kMissing
                                   : IntegrityKindOf(result.status());
    CountIntegrity(TierKind::kSsd, kind, after);
    LogError("ssd_page_broken", {{"kind", std::string(IntegrityKindName(kind))},
                                 {"error", result.status().ToString()}});
    if (entry.host != nullptr) {  // a lower form, and whole: it stays, and its children with it
      DeleteOnSsdLater(key, after);
      DropSsd(id, EvictionReason::kIntegrity, after);
    } else {
      DropEntry(id, EvictionReason::kIntegrity, after);
    }
    result = absl::DataLossError(result.status().message());
  } else if (code != absl::StatusCode::kResourceExhausted) {
    ++counters_.ssd_read_errors;
  }
  return true;
}

}  // namespace pagoda
