// Leaf-first LRU: which entries of one tier go next. The least recently used one that has no
// resident child, so that no chain is ever cut in its middle. Pure: events in, victims out; the
// order of the events is its only clock.
//
// Whoever uses a chain touches it from leaf to root, so that a root is never older than its leaf.
//
// Threads    externally synchronised
// Limits     ids are small numbers (they index a vector); 0 is no entry
// Cost       Touch: O(1); Insert, Remove: O(log n); PickVictims: O(log n) for each victim, and for
//            each entry that was touched since it was last looked at; 24 bytes an id, 12 a leaf
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "storage/base/block_vector.h"

namespace pagoda::policy {

using EntryId = uint32_t;
constexpr EntryId kNoEntry = 0;

class LruPolicy {
 public:
  // The entry becomes resident and most recently used. Its parent (kNoEntry at a root) may be
  // absent, and may come later. REQUIRES: not resident.
  void Insert(EntryId id, EntryId parent, int64_t bytes);
  void Touch(EntryId id);                  // REQUIRES: resident
  void Resize(EntryId id, int64_t bytes);  // keeps its place; REQUIRES: resident
  void Remove(EntryId id);                 // REQUIRES: resident
  // A locked entry is no victim, and nor are its ancestors while it is there. Idempotent; Remove
  // forgets the lock. REQUIRES: resident.
  void Lock(EntryId id);
  void Unlock(EntryId id);

  // Entries to evict, in order, of at least `bytes` together, or all there are. An entry whose
  // children are all picked before it may follow. `may_take` refuses single entries. Changes
  // nothing: the caller removes those that it really evicts.
  std::vector<EntryId> PickVictims(int64_t bytes, absl::FunctionRef<bool(EntryId)> may_take);

  bool resident(EntryId id) const { return id < nodes_.size() && nodes_[id].resident; }
  int64_t bytes_of(EntryId id) const { return nodes_[id].bytes; }
  // Resident children of an entry, itself resident or not.
  uint32_t child_count(EntryId id) const { return id < nodes_.size() ? nodes_[id].child_count : 0; }
  int64_t entry_count() const { return entry_count_; }
  int64_t bytes() const { return bytes_; }
  int64_t locked_bytes() const { return locked_bytes_; }
  int64_t memory_bytes() const;

 private:
  struct Node {
    uint64_t sequence = 0;  // of the last use
    int64_t bytes = 0;
    EntryId parent = kNoEntry;
    uint32_t child_count : 29 = 0;  // resident ones
    uint32_t resident : 1 = false;
    uint32_t locked : 1 = false;
    uint32_t waiting : 1 = false;  // in heap_
  };
  // An entry waiting for its turn, under the sequence that it had when it was put there. Uses since
  // then only make it younger: it is put back when it surfaces.
  class Candidate {
   public:
    Candidate() = default;
    Candidate(uint64_t sequence, EntryId id)
        : high_(static_cast<uint32_t>(sequence >> 32)),
          low_(static_cast<uint32_t>(sequence)),
          id_(id) {}
    uint64_t sequence() const { return (uint64_t{high_} << 32) | low_; }
    EntryId id() const { return id_; }
    bool operator>(const Candidate& other) const { return sequence() > other.sequence(); }

   private:
    uint32_t high_ = 0;  // in halves: 12 bytes instead of 16
    uint32_t low_ = 0;
    EntryId id_ = kNoEntry;
  };

  static bool Evictable(const Node& node) {
    return node.resident && !node.locked && node.child_count == 0;
  }
  void Offer(EntryId id);  // puts an evictable entry into heap_, if it is not there
  void Push(const Candidate& candidate);
  Candidate Pop();
  // The least recently used leaf, on top of heap_; false when there is none.
  bool Surface();

  BlockVector<Node> nodes_;
  std::vector<Candidate> heap_;  // least on top; holds every evictable entry, and each at most once
  uint64_t next_sequence_ = 1;
  int64_t entry_count_ = 0;
  int64_t bytes_ = 0;
  int64_t locked_bytes_ = 0;
};

}  // namespace pagoda::policy
