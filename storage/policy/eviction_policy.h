// Which entries of one tier go next. This class keeps the books of a tier (who is there, who
// follows whom, what is locked, how many bytes) and the rule that a victim is a leaf: no chain is
// ever cut in its middle. In which order the evictable entries go is what derived classes decide;
// keyed_policy.h serves those that give each entry a number.
//
// Pure: events in, victims out. The order of the events is its only clock, and equal events give
// equal victims, always.
//
// Whoever uses a chain touches it from leaf to root, so that a root is never older than its leaf.
//
// Threads    externally synchronised
// Limits     ids are small numbers (they index a vector); 0 is no entry; 2^27 children of one entry
// Cost       24 bytes an id; books of an event: O(1), of a pick: O(victims). See derived classes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "storage/base/block_vector.h"

namespace pagoda::policy {

using EntryId = uint32_t;
constexpr EntryId kNoEntry = 0;

struct NewEntry {
  EntryId id = kNoEntry;
  EntryId parent = kNoEntry;  // of a root: kNoEntry. It may be absent, and may come later.
  int64_t bytes = 0;
  // The same for the same content whenever it comes again, under whatever id: a hash of the page
  // key. Policies remember with it what has gone.
  uint64_t fingerprint = 0;
};

class EvictionPolicy {
 public:
  // `leaves_only` false gives up the leaf rule: for comparisons with flat caches, never in a tier.
  explicit EvictionPolicy(bool leaves_only = true) : leaves_only_(leaves_only) {}
  virtual ~EvictionPolicy() = default;
  EvictionPolicy(const EvictionPolicy&) = delete;
  EvictionPolicy& operator=(const EvictionPolicy&) = delete;

  virtual absl::string_view name() const = 0;

  // ---- Events ---------------------------------------------------------------------------------
  void Insert(const NewEntry& entry);      // it counts as used now. REQUIRES: not resident
  void Touch(EntryId id);                  // REQUIRES: resident
  void Resize(EntryId id, int64_t bytes);  // keeps its place. REQUIRES: resident
  void Remove(EntryId id);                 // REQUIRES: resident
  // The share of a query's attention that fell on the page. Negative and not finite ones are
  // ignored: they come from clients. REQUIRES: resident.
  void ReportAttention(EntryId id, double mass);
  // A locked entry is no victim, and nor are its ancestors while it is there. Idempotent; Remove
  // forgets the lock. REQUIRES: resident.
  void Lock(EntryId id);
  void Unlock(EntryId id);
  // What the tier holds when full; 0: unknown. For policies that divide their space. Not enforced.
  void set_capacity_bytes(int64_t bytes) { capacity_bytes_ = bytes; }

  // Entries to evict, in order, of at least `bytes` together, or all there are. An entry whose
  // children are all picked before it may follow. `may_take` refuses single entries; it may read
  // this object. The caller removes those that it really evicts: until then they stay resident,
  // and a further pick may name them again.
  std::vector<EntryId> PickVictims(int64_t bytes, absl::FunctionRef<bool(EntryId)> may_take);
  // For who wants something else of entries than that they go: of two entries the one with the
  // lesser number would go first, were both leaves, as far as is known now. Changes nothing.
  // REQUIRES: resident.
  virtual uint64_t OrderOf(EntryId id) const = 0;

  // ---- Books ----------------------------------------------------------------------------------
  bool resident(EntryId id) const { return id < nodes_.size() && nodes_[id].resident; }
  int64_t bytes_of(EntryId id) const { return nodes_[id].bytes; }
  // Resident children of an entry, itself resident or not.
  uint32_t child_count(EntryId id) const { return id < nodes_.size() ? nodes_[id].child_count : 0; }
  int64_t entry_count() const { return entry_count_; }
  int64_t bytes() const { return bytes_; }
  int64_t locked_bytes() const { return locked_bytes_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  // What the policy itself takes; an override adds its own.
  virtual int64_t memory_bytes() const { return nodes_.memory_bytes(); }

 protected:
  // ---- What a derived class does with the events, after the books are right -------------------
  virtual void OnInsert(const NewEntry& entry) = 0;
  virtual void OnTouch(EntryId id) = 0;
  virtual void OnReport(EntryId /*id*/, double /*mass*/) {}
  virtual void OnResize(EntryId /*id*/, int64_t /*change_bytes*/) {}
  virtual void OnRemove(EntryId /*id*/) {}  // while the entry is still resident
  // It may go from now on: its last child left, or was picked, or it was unlocked. Not said of an
  // entry that is inserted.
  virtual void OnEvictable(EntryId id) = 0;
  // A pick begins; then, until enough is picked: the next in the order for which MayGo holds, and
  // none that was refused before; kNoEntry when there is none.
  virtual void OnPick() {}
  virtual EntryId NextVictim() = 0;
  virtual void OnPicked(EntryId /*id*/) {}  // the one that NextVictim named was accepted

  bool MayGo(EntryId id) const {
    const Node& node = nodes_[id];
    if (!node.resident || node.locked || node.picked) return false;
    return node.child_count == 0 || node.released || !leaves_only_;
  }
  EntryId parent_of(EntryId id) const { return nodes_[id].parent; }
  // A word and a mark of each entry, for the derived class. Both are 0 in a new entry.
  uint64_t& word(EntryId id) { return nodes_[id].word; }
  uint64_t word(EntryId id) const { return nodes_[id].word; }
  bool queued(EntryId id) const { return nodes_[id].queued; }
  void set_queued(EntryId id, bool queued) { nodes_[id].queued = queued; }

 private:
  struct Pick;  // one walk in the order of the victims
  struct Node {
    uint64_t word = 0;
    int64_t bytes = 0;
    EntryId parent = kNoEntry;
    uint32_t child_count : 27 = 0;  // resident ones
    uint32_t resident : 1 = false;
    uint32_t locked : 1 = false;
    uint32_t queued : 1 = false;
    uint32_t picked : 1 = false;    // during a pick: a victim,
    uint32_t released : 1 = false;  // an entry whose children are all victims
  };
  static_assert(sizeof(Node) == 24);

  const bool leaves_only_;
  BlockVector<Node> nodes_;
  int64_t entry_count_ = 0;
  int64_t bytes_ = 0;
  int64_t locked_bytes_ = 0;
  int64_t capacity_bytes_ = 0;
};

}  // namespace pagoda::policy
