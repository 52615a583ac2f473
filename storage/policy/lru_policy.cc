#include "storage/policy/lru_policy.h"

#include <algorithm>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "storage/base/check.h"

namespace pagoda::policy {

void LruPolicy::Insert(EntryId id, EntryId parent, int64_t bytes) {
  PAGODA_CHECK(id != kNoEntry);
  PAGODA_CHECK(id != parent);
  const EntryId last = std::max(id, parent);
  if (nodes_.size() <= last) nodes_.resize(size_t{last} + 1);
  Node& node = nodes_[id];
  PAGODA_CHECK(!node.resident);
  node.resident = true;
  node.locked = false;
  node.parent = parent;
  node.bytes = bytes;
  node.sequence = next_sequence_++;
  if (parent != kNoEntry) ++nodes_[parent].child_count;
  ++entry_count_;
  bytes_ += bytes;
  Offer(id);
}

void LruPolicy::Touch(EntryId id) {
  PAGODA_CHECK(resident(id));
  nodes_[id].sequence = next_sequence_++;
  Offer(id);
}

void LruPolicy::Resize(EntryId id, int64_t bytes) {
  PAGODA_CHECK(resident(id));
  Node& node = nodes_[id];
  bytes_ += bytes - node.bytes;
  if (node.locked) locked_bytes_ += bytes - node.bytes;
  node.bytes = bytes;
}

void LruPolicy::Remove(EntryId id) {
  PAGODA_CHECK(resident(id));
  Node& node = nodes_[id];
  if (node.locked) locked_bytes_ -= node.bytes;
  bytes_ -= node.bytes;
  --entry_count_;
  node.resident = false;
  node.locked = false;
  node.bytes = 0;
  if (node.parent == kNoEntry) return;
  PAGODA_CHECK(nodes_[node.parent].child_count > 0);
  --nodes_[node.parent].child_count;
  Offer(node.parent);
}

void LruPolicy::Lock(EntryId id) {
  PAGODA_CHECK(resident(id));
  Node& node = nodes_[id];
  if (node.locked) return;
  node.locked = true;
  locked_bytes_ += node.bytes;
}

void LruPolicy::Unlock(EntryId id) {
  PAGODA_CHECK(resident(id));
  Node& node = nodes_[id];
  if (!node.locked) return;
  node.locked = false;
  locked_bytes_ -= node.bytes;
  Offer(id);
}

std::vector<EntryId> LruPolicy::PickVictims(int64_t bytes,
                                            absl::FunctionRef<bool(EntryId)> may_take) {
  std::vector<EntryId> victims;
  std::vector<Candidate> taken;  // popped from heap_, put back at the end
  // Parents that become leaves when the picked victims go.
  std::vector<Candidate> parents;
  absl::flat_hash_map<EntryId, uint32_t> children_left;
  int64_t picked_bytes = 0;
  while (picked_bytes < bytes) {
    DropStale();
    const bool from_parents =
        !parents.empty() && (heap_.empty() || heap_.front() > parents.front());
    Candidate next;
    if (from_parents) {
      std::pop_heap(parents.begin(), parents.end(), std::greater<>());
      next = parents.back();
      parents.pop_back();
    } else if (!heap_.empty()) {
      next = PopCandidate();
      // A leaf may be offered twice under one sequence, by Touch and by Unlock.
      if (!taken.empty() && taken.back().id == next.id) continue;
      taken.push_back(next);
    } else {
      break;
    }
    if (!may_take(next.id)) continue;
    const Node& node = nodes_[next.id];
    victims.push_back(next.id);
    picked_bytes += node.bytes;
    if (node.parent == kNoEntry) continue;
    const Node& parent = nodes_[node.parent];
    const uint32_t child_count = parent.child_count;
    const uint32_t left = --children_left.try_emplace(node.parent, child_count).first->second;
    if (left == 0 && parent.resident && !parent.locked) {
      parents.push_back({parent.sequence, node.parent});
      std::push_heap(parents.begin(), parents.end(), std::greater<>());
    }
  }
  for (const Candidate& candidate : taken) PushCandidate(candidate);
  return victims;
}

void LruPolicy::Offer(EntryId id) {
  if (id < nodes_.size() && Evictable(nodes_[id])) PushCandidate({nodes_[id].sequence, id});
}

void LruPolicy::PushCandidate(const Candidate& candidate) {
  // Stale candidates are dropped when they surface; a heap that is mostly stale is rebuilt.
  if (heap_.size() > 64 && heap_.size() > 2 * static_cast<size_t>(entry_count_)) {
    heap_.erase(std::remove_if(heap_.begin(), heap_.end(),
                               [this](const Candidate& c) { return !Fresh(c); }),
                heap_.end());
    std::sort(heap_.begin(), heap_.end(),
              [](const Candidate& a, const Candidate& b) { return b > a; });
    heap_.erase(std::unique(heap_.begin(), heap_.end(),
                            [](const Candidate& a, const Candidate& b) { return a.id == b.id; }),
                heap_.end());  // sorted ascending: a heap with the least on top
  }
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

LruPolicy::Candidate LruPolicy::PopCandidate() {
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const Candidate candidate = heap_.back();
  heap_.pop_back();
  return candidate;
}

void LruPolicy::DropStale() {
  while (!heap_.empty() && !Fresh(heap_.front())) PopCandidate();
}

}  // namespace pagoda::policy
