// TieredStore: leases. While a page is leased its entry is locked in both tiers' policies.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/tiered_store.h"

namespace pagoda {

absl::StatusOr<LeaseId> TieredStore::GrantLease(const ScopeId& scope, absl::Span<const EntryId> ids,
                                                absl::Span<const Precision> at_least,
                                                const LeaseTerms& terms, Aftermath& after) {
  Lease lease;
  lease.session_id = terms.session_id;
  lease.request_id = terms.request_id;
  lease.scope = scope;
  lease.pages.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const DirectoryEntry& entry = directory_.at(ids[i]);
    const Precision least = at_least.empty() ? Precision::kNone : at_least[i];
    const bool has = entry.host != nullptr && entry.host->precision() >= least;
    lease.pages.push_back({entry.record, entry.incarnation, has ? entry.host : nullptr, least});
  }
  std::vector<LeasedPage> released;
  PAGODA_ASSIGN_OR_RETURN(const LeaseId granted,
                          leases_.Grant(std::move(lease), clock_.Monotonic(),
                                        std::min(terms.ttl, options_.lease_ttl_max), released));
  // The new locks come before the old ones go, so that a renewed page is never without.
  for (const EntryId id : ids) directory_.AddLease(id);
  Unlease(std::move(released), after);
  return granted;
}

void TieredStore::Unlease(std::vector<LeasedPage> released, Aftermath& after) {
  for (LeasedPage& leased : released) {
    const EntryId id = directory_.Find(leased.record);
    // A page that was dropped took its lock with it; one that came back since has its own.
    if (id != kNoEntry && directory_.at(id).incarnation == leased.incarnation) {
      directory_.RemoveLease(id);
    }
    if (leased.page != nullptr) after.pages.push_back(std::move(leased.page));
  }
}

absl::StatusOr<LeaseId> TieredStore::AcquireLease(const ScopeId& scope,
                                                  absl::Span<const RecordKey> keys,
                                                  const LeaseTerms& terms) {
  Aftermath after;
  absl::StatusOr<LeaseId> lease = absl::UnavailableError("store: shutting down");
  {
    absl::MutexLock lock(&mutex_);
    std::vector<EntryId> ids;
    for (const RecordKey& key : keys) {
      const EntryId id = directory_.Find(key, scope);
      if (id == kNoEntry || directory_.at(id).quarantined) {
        return absl::AbortedError(
            absl::StrFormat("lease: page %d of %d is gone", ids.size(), keys.size()));
      }
      ids.push_back(id);
    }
    if (!closing_) lease = GrantLease(scope, ids, /*at_least=*/{}, terms, after);
  }
  Finish(after);
  return lease;
}

absl::Status TieredStore::RenewLease(absl::string_view session_id, LeaseId id, absl::Duration ttl) {
  absl::MutexLock lock(&mutex_);
  return leases_.Renew(session_id, id, clock_.Monotonic(), std::min(ttl, options_.lease_ttl_max));
}

absl::StatusOr<HostPagePtr> TieredStore::GetLeased(absl::string_view session_id, LeaseId id,
                                                   const RecordKey& key) {
  absl::MutexLock lock(&mutex_);
  Lease* lease = leases_.Find(session_id, id, clock_.Monotonic());
  if (lease == nullptr) return absl::NotFoundError("lease: ended, or of another session");
  LeasedPage* leased = lease->FindPage(key);
  if (leased == nullptr) return absl::NotFoundError("lease: it does not name this page");
  if (leased->page != nullptr) return leased->page;
  const EntryId entry = directory_.Find(key, lease->scope);
  if (entry == kNoEntry || directory_.at(entry).incarnation != leased->incarnation ||
      directory_.at(entry).quarantined) {
    return absl::NotFoundError("page: dropped meanwhile");
  }
  HostPagePtr page = GoodEnough(entry, leased->at_least);
  if (page != nullptr && page->precision() < leased->at_least) {
    return absl::NotFoundError("page: only a lower form is left");
  }
  leased->page = page;
  return page;
}

uint64_t TieredStore::LeaseGrant(absl::string_view session_id, LeaseId id) {
  absl::MutexLock lock(&mutex_);
  const Lease* lease = leases_.Find(session_id, id, clock_.Monotonic());
  return lease == nullptr ? 0 : lease->grant;
}

absl::StatusOr<std::vector<RecordKey>> TieredStore::LeasedKeys(absl::string_view session_id,
                                                               LeaseId id, uint32_t begin,
                                                               uint32_t count) {
  absl::MutexLock lock(&mutex_);
  const Lease* lease = leases_.Find(session_id, id, clock_.Monotonic());
  if (lease == nullptr) return absl::NotFoundError("lease: ended, or of another session");
  const size_t found = lease->pages.size();
  if (count == 0 || begin >= found || count > found - begin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("pages: %d+%d asked, the lease has %d", begin, count, found));
  }
  std::vector<RecordKey> keys;
  keys.reserve(count);
  for (uint32_t i = begin; i < begin + count; ++i) keys.push_back(lease->pages[i].record);
  return keys;
}

int64_t TieredStore::ReleaseLease(absl::string_view session_id, LeaseId id) {
  Aftermath after;
  int64_t count;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<LeasedPage> released;
    if (const Lease* lease = leases_.Find(session_id, id, clock_.Monotonic())) {
      prefetch_.Cancel(PrefetchOwner(session_id, lease->request_id));
    }
    count = leases_.Release(session_id, id, released);
    Unlease(std::move(released), after);
  }
  Finish(after);
  return count;
}

int64_t TieredStore::ReleaseRequest(absl::string_view session_id, absl::string_view request_id) {
  Aftermath after;
  int64_t count;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<LeasedPage> released;
    prefetch_.Cancel(PrefetchOwner(session_id, request_id));
    count = leases_.ReleaseRequest(session_id, request_id, released);
    Unlease(std::move(released), after);
  }
  Finish(after);
  return count;
}

int64_t TieredStore::ReleaseSession(absl::string_view session_id) {
  Aftermath after;
  int64_t count;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<LeasedPage> released;
    prefetch_.Cancel(PrefetchOwner(session_id));
    count = leases_.ReleaseSession(session_id, released);
    Unlease(std::move(released), after);
  }
  Finish(after);
  return count;
}

int64_t TieredStore::ExpireLeases() {
  Aftermath after;
  int64_t count;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<LeasedPage> released;
    count = leases_.Expire(clock_.Monotonic(), released);
    counters_.leases_expired += count;
    Unlease(std::move(released), after);
  }
  if (count > 0) {
    after.events.push_back([count](StoreObserver& o) { o.OnLeasesExpired(count); });
  }
  Finish(after);
  return count;
}

}  // namespace pagoda
