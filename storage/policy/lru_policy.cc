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
  nodes_.Resize(size_t{last} + 1);
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
    const bool leaf_left = Surface();
    Candidate next;
    if (!parents.empty() && (!leaf_left || heap_.front() > parents.front())) {
      std::pop_heap(parents.begin(), parents.end(), std::greater<>());
      next = parents.back();
      parents.pop_back();
    } else if (leaf_left) {
      next = Pop();
      taken.push_back(next);
    } else {
      break;
    }
    if (!may_take(next.id())) continue;
    const Node& node = nodes_[next.id()];
    victims.push_back(next.id());
    picked_bytes += node.bytes;
    if (node.parent == kNoEntry) continue;
    const Node& parent = nodes_[node.parent];
    const uint32_t child_count = parent.child_count;
    const uint32_t left = --children_left.try_emplace(node.parent, child_count).first->second;
    if (left == 0 && parent.resident && !parent.locked) {
      parents.emplace_back(parent.sequence, node.parent);
      std::push_heap(parents.begin(), parents.end(), std::greater<>());
    }
  }
  for (const Candidate& candidate : taken) Push(candidate);
  return victims;
}

void LruPolicy::Offer(EntryId id) {
  if (id >= nodes_.size()) return;
  const Node& node = nodes_[id];
  if (Evictable(node) && !node.waiting) Push({node.sequence, id});
}

void LruPolicy::Push(const Candidate& candidate) {
  // By an eighth, not by doubling: there may be millions.
  if (heap_.size() == heap_.capacity()) heap_.reserve(heap_.size() + heap_.size() / 8 + 64);
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  nodes_[candidate.id()].waiting = true;
}

LruPolicy::Candidate LruPolicy::Pop() {
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const Candidate candidate = heap_.back();
  heap_.pop_back();
  nodes_[candidate.id()].waiting = false;
  return candidate;
}

bool LruPolicy::Surface() {
  while (!heap_.empty()) {
    const Candidate top = heap_.front();
    const Node& node = nodes_[top.id()];
    if (Evictable(node) && node.sequence == top.sequence()) return true;
    Pop();
    Offer(top.id());
  }
  return false;
}

int64_t LruPolicy::memory_bytes() const {
  return nodes_.memory_bytes() + static_cast<int64_t>(heap_.capacity() * sizeof(Candidate));
}

}  // namespace pagoda::policy
