// Time-limited rights to read pages. A lease names pages; while it lives the store neither moves
// nor drops them. It ends by itself when its holder falls silent, so that a dead client pins
// nothing for longer than its last term.
//
// A session asks under request ids; the same request id renews its one lease instead of adding
// another. The table is plain state: it takes the time as an argument and calls nobody.
//
// Threads    externally synchronised (TieredStore holds its lock)
// Errors     RESOURCE_EXHAUSTED  more leases than a session, or the table, may hold
//            NOT_FOUND           no such lease of that session
// Limits     Options
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/base/page_key.h"
#include "storage/base/scope.h"
#include "storage/host_page.h"

namespace pagoda {

using LeaseId = uint64_t;  // 0 is no lease

struct LeasedPage {
  RecordKey record;
  uint64_t incarnation = 0;  // of the directory entry: a page that came back is another one
  HostPagePtr page;          // null while the page is not in host memory yet
  Precision at_least = Precision::kNone;  // what the lookup named, of a page to load
};

struct Lease {
  LeaseId id = 0;
  std::string session_id;
  std::string request_id;
  ScopeId scope;
  absl::Duration expires;  // on the monotonic clock
  uint64_t grant = 0;      // another number when it gets other pages
  std::vector<LeasedPage> pages;

  // The named page, or null. Cheap when pages are asked for in their order.
  LeasedPage* FindPage(const RecordKey& record);

 private:
  size_t cursor_ = 0;  // where the last page was found
};

class LeaseTable {
 public:
  struct Options {
    int64_t leases_per_session_max = 1024;
    int64_t leases_max = 1 << 20;
    int64_t pages_per_lease_max = 1 << 16;  // a million tokens in pages of 16
  };
  explicit LeaseTable(const Options& options) : options_(options) {}

  // Grants a lease until now + ttl. If the session already has one for this request id, that one is
  // kept (same id), gets these pages and the new term, and its former pages are added to
  // `released`.
  absl::StatusOr<LeaseId> Grant(Lease lease, absl::Duration now, absl::Duration ttl,
                                std::vector<LeasedPage>& released);
  // New term for a living lease of that session.
  absl::Status Renew(absl::string_view session_id, LeaseId id, absl::Duration now,
                     absl::Duration ttl);
  // A living lease of that session, or null. The pointer is good until the next call.
  Lease* Find(absl::string_view session_id, LeaseId id, absl::Duration now);

  // Whether the session has a lease for this request.
  bool HasRequest(absl::string_view session_id, absl::string_view request_id) const;

  // The ended leases' pages are added to `released`, for the caller to unlock. Returns the number
  // of leases ended.
  int64_t Release(absl::string_view session_id, LeaseId id, std::vector<LeasedPage>& released);
  int64_t ReleaseRequest(absl::string_view session_id, absl::string_view request_id,
                         std::vector<LeasedPage>& released);
  int64_t ReleaseSession(absl::string_view session_id, std::vector<LeasedPage>& released);
  int64_t Expire(absl::Duration now, std::vector<LeasedPage>& released);

  int64_t lease_count() const { return static_cast<int64_t>(leases_.size()); }
  int64_t page_count() const { return page_count_; }

 private:
  struct Session {
    absl::flat_hash_map<std::string, LeaseId> by_request;
  };
  void End(LeaseId id, std::vector<LeasedPage>& released);

  const Options options_;
  absl::flat_hash_map<LeaseId, Lease> leases_;
  absl::flat_hash_map<std::string, Session> sessions_;
  absl::btree_set<std::pair<absl::Duration, LeaseId>> by_expiry_;
  int64_t page_count_ = 0;
  LeaseId next_id_ = 1;
  uint64_t next_grant_ = 1;
};

}  // namespace pagoda
