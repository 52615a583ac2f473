// A policy that gives each entry a number, its key: the evictable entry with the least key goes
// first. Keys are unique, or it does not matter which of two equal ones goes (the lesser id does).
//
// The heap holds each evictable entry once at least, under its key or a former, lesser one; an
// entry that surfaces under a former key is put back under its own. So a key that only rises, as
// those of recency and frequency do, costs nothing until its entry's turn comes.
//
// Cost       Insert, Touch, Remove: O(1) or O(log n); PickVictims: amortised O(victims * log n);
//            12 to 28 bytes an evictable entry besides the base's 24
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "storage/policy/candidate_heap.h"
#include "storage/policy/eviction_policy.h"

namespace pagoda::policy {

class KeyedPolicy : public EvictionPolicy {
 public:
  using EvictionPolicy::EvictionPolicy;
  int64_t memory_bytes() const override;
  uint64_t OrderOf(EntryId id) const final { return KeyOf(id); }

 protected:
  // Called when entries are queued, when their turn comes, and by OrderOf().
  virtual uint64_t KeyOf(EntryId id) const = 0;

  // After a change of the key; also for a new entry, whose key counts as raised.
  void KeyRaised(EntryId id) { Offer(id); }
  void KeyLowered(EntryId id);
  // After a change of any number of keys. Cost: O(n), n evictable entries.
  void KeysChanged();
  // Calls `visit` with every evictable entry, each once, in no particular order. Cost: O(n log n).
  void ForEachEvictable(absl::FunctionRef<void(EntryId)> visit);

  // An override calls this one first.
  void OnPick() override { OfferAgain(); }
  void OnEvictable(EntryId id) final { Offer(id); }
  EntryId NextVictim() final;

 private:
  void Offer(EntryId id) {
    if (!queued(id) && MayGo(id)) Push(id);
  }
  void Push(EntryId id);
  void OfferAgain();
  void Clean();

  CandidateHeap heap_;
  std::vector<EntryId> offered_;  // taken from the heap by the last pick; most are gone by the next
};

}  // namespace pagoda::policy
