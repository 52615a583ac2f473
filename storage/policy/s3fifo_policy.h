// Leaf-first S3-FIFO (Yang et al., SOSP 2023): three queues. New entries enter the small one; at
// its end those that were used twice meanwhile move to the main one, the others go and leave their
// fingerprint in the ghost list. What comes back while its ghost is there enters the main queue.
// At the end of the main queue, an entry with uses pays one and enters it again; one without goes.
// The small queue gives victims while it has a tenth of the bytes or more.
//
// An entry whose turn comes while it may not go (it has children, or is locked) counts as used: it
// is put at the main queue's beginning, and is looked at again when it may.
//
// Cost       Insert, Touch, Remove: O(1) or O(log n); PickVictims: amortised O(log n) an entry that
//            is looked at, at most four looks for each use. 16 bytes an entry and about 30 a ghost,
//            besides the base's 24
#pragma once

#include <cstdint>
#include <vector>

#include "storage/policy/candidate_heap.h"
#include "storage/policy/eviction_policy.h"
#include "storage/policy/ghost_list.h"

namespace pagoda::policy {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  using EvictionPolicy::EvictionPolicy;
  absl::string_view name() const override { return "s3fifo"; }
  // By the rounds that an entry's uses keep it, then by its place; the small queue first.
  uint64_t OrderOf(EntryId id) const override;

 protected:
  void OnInsert(const NewEntry& entry) override;
  void OnTouch(EntryId id) override;
  void OnResize(EntryId id, int64_t change_bytes) override;
  void OnRemove(EntryId id) override;
  void OnEvictable(EntryId id) override { Enqueue(id); }
  void OnPick() override;
  EntryId NextVictim() override;
  void OnPicked(EntryId id) override;

 private:
  void Enqueue(EntryId id);
  void MoveToMain(EntryId id, uint64_t use_count);
  void Clean(CandidateHeap& queue);
  bool TakeFromSmall() const;

  // In the order of their places: all entries of that queue, but those whose turn came while they
  // could not go.
  CandidateHeap small_;
  CandidateHeap main_;
  GhostList ghosts_;
  std::vector<uint64_t> fingerprints_;  // by id
  std::vector<EntryId> offered_;        // by the last pick; most are gone by the next
  uint64_t next_place_ = 1;
  int64_t small_bytes_ = 0;
  int64_t picked_small_bytes_ = 0;
};

}  // namespace pagoda::policy
