#include "storage/lease_table.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

void MoveTo(std::vector<LeasedPage>& pages, std::vector<LeasedPage>& released) {
  for (LeasedPage& page : pages) released.push_back(std::move(page));
  pages.clear();
}

}  // namespace

LeasedPage* Lease::FindPage(const RecordKey& record) {
  for (size_t i = 0; i < pages.size(); ++i) {
    const size_t at = (cursor_ + i) % pages.size();
    if (pages[at].record != record) continue;
    cursor_ = at + 1;  // the next one is asked for next
    return &pages[at];
  }
  return nullptr;
}

absl::StatusOr<LeaseId> LeaseTable::Grant(Lease lease, absl::Duration now, absl::Duration ttl,
                                          std::vector<LeasedPage>& released) {
  if (static_cast<int64_t>(lease.pages.size()) > options_.pages_per_lease_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("lease: asked %d pages, at most %d in one lease", lease.pages.size(),
                        options_.pages_per_lease_max));
  }
  lease.expires = now + ttl;
  lease.grant = next_grant_++;
  const auto session = sessions_.find(lease.session_id);
  if (session != sessions_.end()) {
    const auto old = session->second.by_request.find(lease.request_id);
    if (old != session->second.by_request.end()) {
      Lease& kept = leases_.at(old->second);
      by_expiry_.erase({kept.expires, kept.id});
      page_count_ +=
          static_cast<int64_t>(lease.pages.size()) - static_cast<int64_t>(kept.pages.size());
      MoveTo(kept.pages, released);
      lease.id = kept.id;
      kept = std::move(lease);
      by_expiry_.insert({kept.expires, kept.id});
      return kept.id;
    }
    if (static_cast<int64_t>(session->second.by_request.size()) >=
        options_.leases_per_session_max) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("lease: the session holds %d leases, at most %d",
                          session->second.by_request.size(), options_.leases_per_session_max));
    }
  }
  if (lease_count() >= options_.leases_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("lease: %d leases held, at most %d", lease_count(), options_.leases_max));
  }
  lease.id = next_id_++;
  const LeaseId id = lease.id;
  page_count_ += static_cast<int64_t>(lease.pages.size());
  sessions_[lease.session_id].by_request[lease.request_id] = id;
  by_expiry_.insert({lease.expires, id});
  leases_.emplace(id, std::move(lease));
  return id;
}

absl::Status LeaseTable::Renew(absl::string_view session_id, LeaseId id, absl::Duration now,
                               absl::Duration ttl) {
  Lease* lease = Find(session_id, id, now);
  if (lease == nullptr) return absl::NotFoundError("lease: ended, or of another session");
  by_expiry_.erase({lease->expires, id});
  lease->expires = now + ttl;
  by_expiry_.insert({lease->expires, id});
  return absl::OkStatus();
}

Lease* LeaseTable::Find(absl::string_view session_id, LeaseId id, absl::Duration now) {
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.session_id != session_id) return nullptr;
  return it->second.expires > now ? &it->second : nullptr;
}

int64_t LeaseTable::Release(absl::string_view session_id, LeaseId id,
                            std::vector<LeasedPage>& released) {
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.session_id != session_id) return 0;
  End(id, released);
  return 1;
}

bool LeaseTable::HasRequest(absl::string_view session_id, absl::string_view request_id) const {
  const auto session = sessions_.find(session_id);
  return session != sessions_.end() && session->second.by_request.contains(request_id);
}

int64_t LeaseTable::ReleaseRequest(absl::string_view session_id, absl::string_view request_id,
                                   std::vector<LeasedPage>& released) {
  const auto session = sessions_.find(session_id);
  if (session == sessions_.end()) return 0;
  const auto lease = session->second.by_request.find(request_id);
  if (lease == session->second.by_request.end()) return 0;
  End(lease->second, released);
  return 1;
}

int64_t LeaseTable::ReleaseSession(absl::string_view session_id,
                                   std::vector<LeasedPage>& released) {
  const auto session = sessions_.find(session_id);
  if (session == sessions_.end()) return 0;
  std::vector<LeaseId> ids;
  for (const auto& [request, id] : session->second.by_request) ids.push_back(id);
  for (const LeaseId id : ids) End(id, released);
  return static_cast<int64_t>(ids.size());
}

int64_t LeaseTable::Expire(absl::Duration now, std::vector<LeasedPage>& released) {
  int64_t count = 0;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    End(by_expiry_.begin()->second, released);
    ++count;
  }
  return count;
}

void LeaseTable::End(LeaseId id, std::vector<LeasedPage>& released) {
  const auto it = leases_.find(id);
  PAGODA_CHECK(it != leases_.end());
  Lease& lease = it->second;
  page_count_ -= static_cast<int64_t>(lease.pages.size());
  MoveTo(lease.pages, released);
  by_expiry_.erase({lease.expires, id});
  const auto session = sessions_.find(lease.session_id);
  PAGODA_CHECK(session != sessions_.end());
  session->second.by_request.erase(lease.request_id);
  if (session->second.by_request.empty()) sessions_.erase(session);
  leases_.erase(it);
}

}  // namespace pagoda
