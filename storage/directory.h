// What the store knows of every page: where its copies are, what they are worth, who follows whom,
// who may see it, when it was used. It holds no lock and calls nobody.
//
// An entry lives while a copy of the page exists in some tier. When the last copy goes while pages
// that follow it are still there, its slot stays behind as a ghost, so that they are reachable
// again once the page is pushed again.
//
// Threads    externally synchronised (TieredStore holds its lock)
// Limits     2^32 - 1 entries, 65536 scopes, identities and pushers, 16 TiB a page
// Cost       at most kBytesPerPageMax bytes a page: see storage/README.md
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/base/block_vector.h"
#include "storage/directory_record.h"
#include "storage/host_page.h"
#include "storage/intern_table.h"
#include "storage/plane_mask.h"
#include "storage/policy/eviction_policy.h"
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
  bool operator==(const CopyInfo&) const = default;
};

// What many pages have in common; stored once for all of them.
struct PageTraits {
  uint16_t scope_index = 0;
  uint16_t identity_index = 0;
  uint16_t pusher_index = 0;
  uint16_t layer_count = 0;
  uint32_t page_tokens = 0;
  PlaneMask ssd_planes = 0;  // of the copy on SSD, like the next two
  Precision ssd_precision = Precision::kNone;
  Precision ssd_fidelity = Precision::kNone;
  uint64_t backend_tag = 0;

  bool operator==(const PageTraits&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PageTraits& t) {
    return H::combine(std::move(h), t.scope_index, t.identity_index, t.pusher_index, t.layer_count,
                      t.page_tokens, t.ssd_planes, t.ssd_precision, t.ssd_fidelity, t.backend_tag);
  }
};

struct DirectoryEntry {
  RecordKey record;
  bool parent_is_root : 1 = false;
  bool pinned : 1 = false;
  bool quarantined : 1 = false;
  bool dirty : 1 = false;   // the host copy is to be written to SSD
  bool queued : 1 = false;  // a write to SSD is on its way
  uint8_t uses = 0;         // decayed; see policy/use_count.h
  HostPagePtr host;         // null: not in host memory
  uint64_t base_position = 0;
  InternId traits = 0;
  uint32_t incarnation = 0;  // 0: a ghost, or a free slot
  EntryId parent = kNoEntry;
  uint32_t child_count = 0;  // living pages that follow this one directly
  uint32_t lease_count = 0;
  uint32_t last_use_seconds = 0;  // on the monotonic clock
  uint32_t created_unix_seconds = 0;
  uint32_t content_head = 0;  // first bytes of the content hash
  uint32_t ssd_blocks = 0;    // of 4096 bytes; 0: not on SSD
  uint32_t ssd_version = 0;   // changes with every write of the SSD copy

  bool alive() const { return incarnation != 0; }
  bool locked() const { return pinned || lease_count > 0; }
  bool on_ssd() const { return ssd_blocks > 0; }
  int64_t ssd_bytes() const { return int64_t{ssd_blocks} * kSegmentAlignBytes; }
};
static_assert(sizeof(DirectoryEntry) == 104);

class Directory {
 public:
  // Of entry, hash slot, policies of both tiers; held by directory_memory_test.
  static constexpr int64_t kBytesPerPageMax = 200;

  // Both policies begin as lru. `use_window` is that of the use counts: policy/use_count.h.
  explicit Directory(absl::Duration use_window = absl::Minutes(1));
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // The living entry of a key, or kNoEntry. The second also asks for the scope.
  EntryId Find(const RecordKey& key) const;
  EntryId Find(const RecordKey& key, const ScopeId& scope) const;
  const DirectoryEntry& at(EntryId id) const { return slots_[id]; }
  const PageTraits& traits_of(EntryId id) const { return traits_.at(slots_[id].traits); }
  const ScopeId& scope_of(EntryId id) const { return scopes_[traits_of(id).scope_index].scope; }
  const Identity& identity_of(EntryId id) const {
    return identities_[traits_of(id).identity_index];
  }
  const ScopeStats& scope_stats_of(EntryId id) const { return scopes_[traits_of(id).scope_index]; }
  // Equal whenever the same page comes again.
  uint64_t fingerprint_of(EntryId id) const;
  CopyInfo ssd_copy_of(EntryId id) const;
  CopyInfo best_copy_of(EntryId id) const;  // in host memory if there is one, else on SSD
  // False: another content than the stored one, for certain.
  bool MayBeContent(EntryId id, const ContentHash& content) const;

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
  // The share of a query's attention that fell on the page: for the policies.
  void ReportAttention(EntryId id, double mass);
  // Uses in about the last two windows.
  uint8_t UsesOf(EntryId id, absl::Duration now) const;
  void AddLease(EntryId id);
  void RemoveLease(EntryId id);
  void SetPinned(EntryId id, bool pinned);
  void SetQuarantined(EntryId id, bool quarantined) { slots_[id].quarantined = quarantined; }
  void SetDirty(EntryId id, bool dirty);
  void SetQueued(EntryId id, bool queued) { slots_[id].queued = queued; }

  // ---- Walks over everything. Cost: O(entries). ----------------------------------------------
  // Another policy for a tier. It is told of the pages as if they had been used in the order of
  // their last use, each as often as it was lately; reports of attention begin anew.
  void SetHostPolicy(std::unique_ptr<policy::EvictionPolicy> policy);
  void SetSsdPolicy(std::unique_ptr<policy::EvictionPolicy> policy);
  // Entries whose chain to the root is broken; leaves first.
  std::vector<EntryId> Unreachable() const;
  // Counts everything again. INTERNAL: a sum is wrong; it names the largest ones.
  absl::Status CheckSums() const;
  // Slots are numbered from 1 to slot_count() - 1; some are not alive.
  EntryId slot_count() const { return static_cast<EntryId>(slots_.size()); }
  PageInfo InfoOf(EntryId id, absl::Duration now) const;

  // ---- Sums -----------------------------------------------------------------------------------
  policy::EvictionPolicy& host_policy() { return *host_policy_; }
  policy::EvictionPolicy& ssd_policy() { return *ssd_policy_; }
  const policy::EvictionPolicy& host_policy() const { return *host_policy_; }
  const policy::EvictionPolicy& ssd_policy() const { return *ssd_policy_; }
  int64_t host_bytes() const { return host_policy_->bytes(); }
  int64_t ssd_bytes() const { return ssd_policy_->bytes(); }
  // Pages in host memory of a precision in (above, most].
  int64_t HostPagesAbove(Precision above, Precision most) const;
  int64_t page_count() const { return page_count_; }
  int64_t ghost_count() const { return static_cast<int64_t>(index_.size()) - page_count_; }
  int64_t dirty_count() const { return dirty_count_; }
  int64_t leased_count() const { return leased_count_; }
  int64_t pinned_count() const { return pinned_count_; }
  // Sums of every scope seen so far, those without pages included.
  absl::Span<const ScopeStats> scopes() const { return scopes_; }
  // Fills the sums of both tiers, the scopes and the pushers.
  void FillStats(StoreStats& stats) const;
  // What all of this takes: entries, hash slots, traits, policies. The pages' own bytes and headers
  // are not counted here.
  int64_t memory_bytes() const;

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
  enum class Tier { kHost, kSsd };

  // A slot for the key: its ghost if it has one, else a new ghost.
  EntryId TakeSlot(const RecordKey& key);
  absl::StatusOr<EntryId> Enliven(const DirectoryRecord& record, absl::Duration now);
  bool IsAncestor(EntryId ancestor, EntryId id) const;
  void EraseIfEmpty(EntryId id);
  void FreeSlotIfUnused(EntryId id);
  void SetTraits(EntryId id, const PageTraits& traits);
  // Counts a copy in (+1) or out (-1): in its tier, its scope and its pusher.
  void Count(Tier tier, EntryId id, const CopyInfo& copy, int sign);
  void ApplyLock(EntryId id);
  void Refill(policy::EvictionPolicy& policy, const policy::EvictionPolicy& old) const;

  BlockVector<DirectoryEntry> slots_;  // slot 0 is kNoEntry
  std::vector<EntryId> free_slots_;
  absl::flat_hash_set<EntryId, SlotHash, SlotEqual> index_;  // living entries and ghosts
  InternTable<PageTraits> traits_;
  std::unique_ptr<policy::EvictionPolicy> host_policy_;
  std::unique_ptr<policy::EvictionPolicy> ssd_policy_;

  // Names seen so far; they are few and never forgotten.
  std::vector<ScopeStats> scopes_;
  std::vector<Identity> identities_;
  std::vector<PusherStats> pushers_;
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
  const uint32_t use_window_seconds_;
};

}  // namespace pagoda
