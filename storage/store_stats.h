// Plain snapshots of the store, for `pagoda status`, `pagoda pages`, metrics and admin filters.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "storage/base/page_header.h"
#include "storage/plane_mask.h"
#include "storage/prefetch/prefetch_outcomes.h"
#include "storage/store_observer.h"
#include "storage/tier.h"

namespace pagoda {

struct TierStats {
  int64_t capacity_bytes = 0;
  int64_t used_bytes = 0;       // host: live slabs, readers' and staged ones included; SSD: pages
  int64_t reserved_bytes = 0;   // host: chunks taken by scopes; SSD: used_bytes
  int64_t page_bytes = 0;       // of pages that can be looked up
  int64_t pinned_bytes = 0;     // of pages that are pinned or leased
  int64_t staged_bytes = 0;     // host: being pushed, loaded or encoded
  int64_t lingering_bytes = 0;  // host: dropped or replaced, and still read
  // used - page - staged - lingering bytes: 0, but while a change of SSD is on its way, or after
  // one that the disk refused.
  int64_t unaccounted_bytes = 0;
  int64_t page_count = 0;
  std::map<Precision, int64_t> pages_by_precision;
  bool present = false;
};

struct ScopeStats {
  ScopeId scope;
  ScopeKind kind = ScopeKind::kPrivate;
  int64_t page_count = 0;
  int64_t host_bytes = 0;
  int64_t ssd_bytes = 0;
  int64_t host_used_bytes = 0;      // live slabs: host_bytes, staged and lingering ones
  int64_t host_reserved_bytes = 0;  // chunks taken
};

// Of the pages that one tenant pushed, in whatever scope.
struct PusherStats {
  PusherId pusher;
  int64_t page_count = 0;
  int64_t host_bytes = 0;
  int64_t ssd_bytes = 0;
};

// Monotonic counts since Open().
struct StoreCounters {
  int64_t commits[kCommitOutcomeCount] = {};
  int64_t commits_refused = 0;  // unknown parent, bad checksum, wrong scope
  int64_t evictions[kTierKindCount][kEvictionReasonCount][kEvictionActionCount] = {};
  int64_t promoted_bytes = 0;  // SSD to host
  int64_t demoted_bytes = 0;   // left host, kept on SSD
  int64_t integrity_failures[kTierKindCount][kIntegrityKindCount] = {};
  int64_t content_mismatches = 0;
  int64_t ssd_read_bytes = 0;
  int64_t ssd_written_bytes = 0;
  int64_t ssd_read_errors = 0;
  int64_t ssd_write_errors = 0;
  int64_t write_queue_refusals = 0;
  int64_t load_queue_refusals = 0;
  int64_t loads_started = 0;
  int64_t loads_joined = 0;    // waited for a read that was under way already
  int64_t loads_late = 0;      // answered UNAVAILABLE at their deadline
  int64_t ssd_pages_lost = 0;  // the disk failed to keep what it had taken (fsync)
  int64_t ssd_breaker_trips[policy::kBreakerReasonCount] = {};
  int64_t leases_expired = 0;
  int64_t compacted_bytes = 0;   // moved in host memory to empty a chunk
  int64_t compacted_chunks = 0;  // emptied that way
  int64_t stage_refusals = 0;    // RESOURCE_EXHAUSTED answered to Stage
};

struct StoreStats {
  TierStats host;
  TierStats ssd;
  std::vector<ScopeStats> scopes;
  std::vector<PusherStats> pushers;
  StoreCounters counters;
  prefetch::Counters prefetch;
  int64_t page_count = 0;  // distinct pages in any tier
  int64_t lease_count = 0;
  int64_t leased_page_count = 0;
  int64_t staged_page_count = 0;  // staged and not yet committed
  int64_t directory_memory_bytes = 0;
  int64_t pinned_page_count = 0;  // by Pin, not by leases
  int64_t write_queue_count = 0;
  int64_t load_queue_count = 0;
  policy::BreakerState ssd_breaker = policy::BreakerState::kClosed;
  int64_t ssd_file_bytes = 0;    // what the extent files take on the disk, in use or not
  int64_t unflushed_count = 0;   // changes on SSD that a kill would lose
  int64_t dirty_page_count = 0;  // in host memory only, or to be written to SSD again
};

// One page as `pagoda pages` lists it.
struct PageInfo {
  RecordKey record;
  Identity identity;
  PageKey parent;  // zero when parent_is_root, or when the parent is gone
  bool parent_is_root = false;
  ScopeId scope;
  ScopeKind scope_kind = ScopeKind::kPrivate;
  PusherId pusher;
  uint32_t page_tokens = 0;
  uint64_t base_position = 0;
  uint16_t layer_count = 0;
  uint64_t backend_tag = 0;
  Precision fidelity = Precision::kNone;  // of the best copy, like the next two
  Precision precision = Precision::kNone;
  PlaneMask planes = 0;
  bool in_host = false;
  bool on_ssd = false;
  int64_t host_bytes = 0;
  int64_t ssd_bytes = 0;
  bool dirty = false;     // the host copy is still to be written to SSD,
  bool to_write = false;  // and PersistAsync() would write it now
  bool pinned = false;
  bool quarantined = false;
  int32_t uses = 0;  // lately, since it was stored
  int32_t lease_count = 0;
  absl::Duration idle;  // since the last use
  uint64_t created_unix_seconds = 0;
};

// Pages that match every field that is set.
struct PageFilter {
  std::optional<ScopeId> scope;
  std::optional<Identity> identity;
  std::optional<PusherId> pusher;
  std::optional<RecordKey> record;
  std::optional<Precision> precision;
  std::optional<TierKind> tier;  // Evict: drops only this tier's copies
  bool keep_locked = false;      // Evict: pinned and leased pages stay
  bool Matches(const PageInfo& page) const {
    return (!scope || *scope == page.scope) && (!identity || *identity == page.identity) &&
           (!pusher || *pusher == page.pusher) && (!record || *record == page.record) &&
           (!precision || *precision == page.precision) &&
           (!tier || (*tier == TierKind::kHost && page.in_host) ||
            (*tier == TierKind::kSsd && page.on_ssd)) &&
           !(keep_locked && (page.pinned || page.lease_count > 0));
  }
};

}  // namespace pagoda
