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
#include "absl/hash/hash.h"
#include "absl/status/statusor.h"
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
  uint16_t layer_count = 0;
  bool parent_is_root : 1 = false;
  bool pinned : 1 = false;
  bool quarantined : 1 = false;
  bool dirty : 1 = false;   // the host copy is not what SSD has
  bool queued : 1 = false;  // a write to SSD is on its way
  HostPagePtr host;         // null: not in host memory
  CopyInfo ssd;
  uint64_t base_position = 0;
  uint64_t backend_tag = 0;
  ContentHashHead content_hash{};
  uint32_t incarnation = 0;  // 0: a ghost, or a free slot
  EntryId parent = kNoEntry;
  uint32_t child_count = 0;  // living pages that follow this one directly
  uint32_t page_tokens = 0;
  uint32_t lease_count = 0;
  uint32_t last_use_seconds = 0;  // on the monotonic clock
  uint32_t created_unix_seconds = 0;
  uint32_t ssd_version = 0;  // changes with every write of the SSD copy

  bool alive() const { return incarnation != 0; }
  bool locked() const { return pinned || lease_count > 0; }
  bool on_ssd() const { return ssd.bytes > 0; }
  CopyInfo best() const;  // of the host copy if there is one, else of that on SSD
};

class Directory {
 public:
  Directory() : slots_(1), index_(0, SlotHash{this}, SlotEqual{this}) {}
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // The living entry of a key, or kNoEntry. The second also asks for the scope.
  EntryId Find(const RecordKey& key) const;
  EntryId Find(const RecordKey& key, const ScopeId& scope) const;
  const DirectoryEntry& at(EntryId id) const { return slots_[id]; }
  const ScopeId& scope_of(EntryId id) const { return scopes_[slots_[id].scope_index].scope; }
  const Identity& identity_of(EntryId id) const { return identities_[slots_[id].identity_index]; }

  // ---- Copies. The entry goes with its last copy, and its locks and marks with it. ----------
  // A new page in host memory (dirty), or one found on SSD at start. REQUIRES: no living entry.
  // INVALID_ARGUMENT: the page would be its own ancestor. RESOURCE_EXHAUSTED: too many scopes, ...
  absl::StatusOr<EntryId> AddHost(HostPagePtr page, absl::Duration now);
  absl::StatusOr<EntryId> AddSsd(const DirectoryRecord& record, absl::Duration now);
  // Adds the host copy, or takes another one in its place; the old one is returned, so that the
  // caller can let go of it without the lock.
  HostPagePtr SetHost(EntryId id, HostPagePtr page, bool dirty);
  HostPagePtr DropHost(EntryId id);
  void SetSsd(EntryId id, const CopyInfo& copy);
  void DropSsd(EntryId id);

  // ---- Marks --------------------------------------------------------------------------------
  void Touch(EntryId id, absl::Duration now);
  void AddLease(EntryId id);
  void RemoveLease(EntryId id);
  void SetPinned(EntryId id, bool pinned);
  void SetQuarantined(EntryId id, bool quarantined) { slots_[id].quarantined = quarantined; }
  void SetDirty(EntryId id, bool dirty);
  void SetQueued(EntryId id, bool queued) { slots_[id].queued = queued; }

  // ---- Walks over everything. Cost: O(entries). ----------------------------------------------
  // All entries that match, and all that follow one of them; leaves first.
  std::vector<EntryId> Subtrees(absl::FunctionRef<bool(EntryId)> matches) const;
  // Entries whose chain to the root is broken; leaves first.
  std::vector<EntryId> Unreachable() const;
  // Slots are numbered from 1 to slot_count() - 1; some are not alive.
  EntryId slot_count() const { return static_cast<EntryId>(slots_.size()); }
  PageInfo InfoOf(EntryId id, absl::Duration now) const;

  // ---- Sums -----------------------------------------------------------------------------------
  policy::LruPolicy& host_policy() { return host_policy_; }
  policy::LruPolicy& ssd_policy() { return ssd_policy_; }
  const policy::LruPolicy& host_policy() const { return host_policy_; }
  const policy::LruPolicy& ssd_policy() const { return ssd_policy_; }
  int64_t host_bytes() const { return host_policy_.bytes(); }
  int64_t ssd_bytes() const { return ssd_policy_.bytes(); }
  int64_t page_count() const { return page_count_; }
  int64_t ghost_count() const { return static_cast<int64_t>(index_.size()) - page_count_; }
  int64_t dirty_count() const { return dirty_count_; }
  int64_t leased_count() const { return leased_count_; }
  int64_t pinned_count() const { return pinned_count_; }
  // Fills the sums of both tiers and the scopes.
  void FillStats(StoreStats& stats) const;

 private:
  struct SlotHash {
    using is_transparent = void;
    const Directory* directory;
    size_t operator()(EntryId id) const { return (*this)(directory->slots_[id].record); }
    size_t operator()(const RecordKey& key) const { return absl::HashOf(key); }
  };
  struct SlotEqual {
    using is_transparent = void;
    const Directory* directory;
    bool operator()(EntryId a, EntryId b) const { return a == b; }
    bool operator()(EntryId a, const RecordKey& b) const {
      return directory->slots_[a].record == b;
    }
  };
  struct Sums {
    int64_t page_count = 0;
    std::map<Precision, int64_t> by_precision;
    void Add(const CopyInfo& copy, int sign);
  };

  // A slot for the key: its ghost if it has one, else a new ghost.
  EntryId TakeSlot(const RecordKey& key);
  absl::StatusOr<EntryId> Enliven(const DirectoryRecord& record, absl::Duration now);
  bool IsAncestor(EntryId ancestor, EntryId id) const;
  void EraseIfEmpty(EntryId id);
  void FreeSlotIfUnused(EntryId id);
  void ApplyLock(EntryId id);
  std::vector<EntryId> Marked(absl::FunctionRef<bool(EntryId)> marks) const;

  std::deque<DirectoryEntry> slots_;  // slot 0 is kNoEntry
  std::vector<EntryId> free_slots_;
  absl::flat_hash_set<EntryId, SlotHash, SlotEqual> index_;  // living entries and ghosts
  policy::LruPolicy host_policy_;
  policy::LruPolicy ssd_policy_;

  // Names seen so far; they are few and never forgotten.
  std::vector<ScopeStats> scopes_;
  std::vector<Identity> identities_;
  std::vector<PusherId> pushers_;
  absl::flat_hash_map<ScopeId, uint16_t> scope_index_;
  absl::flat_hash_map<Identity, uint16_t> identity_index_;
  absl::flat_hash_map<PusherId, uint16_t> pusher_index_;

  Sums host_sums_;
  Sums ssd_sums_;
  int64_t page_count_ = 0;
  int64_t dirty_count_ = 0;
  int64_t leased_count_ = 0;
  int64_t pinned_count_ = 0;
  uint32_t next_incarnation_ = 1;
};

}  // namespace pagoda
