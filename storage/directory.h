// What the store knows of every page: where its copies are, what they are worth, who follows whom,
// who may see it, when it was used. It holds no lock and calls nobody.
//
// An entry lives while a copy of the page exists in some tier. When the last copy goes while pages
// that follow it are still there, its slot stays behind as a ghost, so that they are reachable
// again once the page is pushed again.
//
// Threads    externally synchronised (TieredStore holds its lock)
// Limits     2^32 - 1 entries, 65536 scopes, identities and pushers
// Cost       sizeof(DirectoryEntry) + two policy nodes + the hash slot: see storage/README.md
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "storage/directory_record.h"
#include "storage/host_page.h"
#include "storage/plane_mask.h"
#include "storage/policy/lru_policy.h"
#include "storage/store_stats.h"

namespace pagoda {

using policy::EntryId;
using policy::kNoEntry;

// What one tier's copy of a page is worth. Copies differ for a while after a new encoding.
struct CopyInfo {
  int64_t bytes = 0;  // 0: no copy
  PlaneMask planes = 0;
  Precision precision = Precision::kNone;
  Precision fidelity = Precision::kNone;
};

struct DirectoryEntry {
  RecordKey record;
  uint16_t scope_index = 0;
  uint16_t identity_index = 0;
  uint16_t pusher_index = 0;
  HostPagePtr host;  // null: not in host memory
  CopyInfo ssd;
  uint64_t incarnation = 0;  // 0: a ghost, or a free slot
  uint64_t base_position = 0;
  uint64_t content_tag = 0;  // hash of (backend tag, recipe of the push, content hash head)
  uint64_t backend_tag = 0;
  EntryId parent = kNoEntry;
  uint32_t child_count = 0;  // living pages that follow this one directly
  uint32_t page_tokens = 0;
  uint32_t lease_count = 0;
  uint32_t last_use_seconds = 0;  // on the monotonic clock
  uint32_t created_unix_seconds = 0;
  uint32_t ssd_version = 0;  // changes with every write of the SSD copy
  uint16_t layer_count = 0;
  bool parent_is_root : 1 = false;
  bool pinned : 1 = false;
  bool quarantined : 1 = false;
  bool dirty : 1 = false;       // the host copy is not what SSD has
  bool queued : 1 = false;      // a write to SSD is on its way
  bool drop_queued : 1 = false;  // ... after which the host copy shall go

  bool alive() const { return incarnation != 0; }
  bool locked() const { return pinned || lease_count > 0; }
  CopyInfo best() const;  // the host copy if there is one, else that on SSD
};
}  // namespace pagoda
