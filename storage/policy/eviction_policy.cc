#include "storage/policy/eviction_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "storage/base/check.h"

namespace pagoda::policy {

void EvictionPolicy::Insert(const NewEntry& entry) {
  PAGODA_CHECK(entry.id != kNoEntry);
  PAGODA_CHECK(entry.id != entry.parent);
  const EntryId last = std::max(entry.id, entry.parent);
  nodes_.Resize(size_t{last} + 1);
  Node& node = nodes_[entry.id];
  PAGODA_CHECK(!node.resident);
  node.resident = true;
  node.locked = false;
  node.queued = false;
  node.word = 0;
  node.parent = entry.parent;
  node.bytes = entry.bytes;
  if (entry.parent != kNoEntry) ++nodes_[entry.parent].child_count;
  ++entry_count_;
  bytes_ += entry.bytes;
  OnInsert(entry);
}

void EvictionPolicy::Touch(EntryId id) {
  PAGODA_CHECK(resident(id));
  OnTouch(id);
}

void EvictionPolicy::Resize(EntryId id, int64_t bytes) {
  PAGODA_CHECK(resident(id));
  Node& node = nodes_[id];
  bytes_ += bytes - node.bytes;
  if (node.locked) locked_bytes_ += bytes - node.bytes;
  const int64_t change_bytes = bytes - node.bytes;
  node.bytes = bytes;
  OnResize(id, change_bytes);
}

void EvictionPolicy::Remove(EntryId id) {
  PAGODA_CHECK(resident(id));
  OnRemove(id);
  Node& node = nodes_[id];
  if (node.locked) locked_bytes_ -= node.bytes;
  bytes_ -= node.bytes;
  --entry_count_;
  node.resident = false;
  node.locked = false;
  node.queued = false;
  node.bytes = 0;
  if (node.parent == kNoEntry) return;
  Node& parent = nodes_[node.parent];
  PAGODA_CHECK(parent.child_count > 0);
  --parent.child_count;
  if (parent.child_count == 0 && MayGo(node.parent)) OnEvictable(node.parent);
}

void EvictionPolicy::ReportAttention(EntryId id, double mass) {
  PAGODA_CHECK(resident(id));
  if (std::isfinite(mass) && mass >= 0) OnReport(id, mass);
}

void EvictionPolicy::Lock(EntryId id) {
  PAGODA_CHECK(resident(id));
  Node& node = nodes_[id];
  if (node.locked) return;
  node.locked = true;
  locked_bytes_ += node.bytes;
}

void EvictionPolicy::Unlock(EntryId id) {
  PAGODA_CHECK(resident(id));
  Node& node = nodes_[id];
  if (!node.locked) return;
  node.locked = false;
  locked_bytes_ -= node.bytes;
  if (MayGo(id)) OnEvictable(id);
}

// Marks what it takes, so that parents follow their children; the marks go with it.
struct EvictionPolicy::Pick {
  explicit Pick(EvictionPolicy& owner) : policy(owner) { policy.OnPick(); }
  ~Pick() {
    for (const EntryId id : taken) {
      policy.nodes_[id].picked = false;
      policy.nodes_[policy.nodes_[id].parent].released = false;
    }
  }
  Pick(const Pick&) = delete;
  Pick& operator=(const Pick&) = delete;

  void Take(EntryId id) {
    Node& node = policy.nodes_[id];
    PAGODA_CHECK(!node.picked);
    node.picked = true;
    taken.push_back(id);
    policy.OnPicked(id);
    if (node.parent == kNoEntry || !policy.leaves_only_) return;
    Node& parent = policy.nodes_[node.parent];
    const uint32_t children = parent.child_count;
    const uint32_t left =
        children == 1 ? 0 : --children_left.try_emplace(node.parent, children).first->second;
    if (left > 0) return;
    parent.released = true;
    if (policy.MayGo(node.parent)) policy.OnEvictable(node.parent);
  }

  EvictionPolicy& policy;
  std::vector<EntryId> taken;
  absl::flat_hash_map<EntryId, uint32_t> children_left;  // of parents with several children
};

std::vector<EntryId> EvictionPolicy::PickVictims(int64_t bytes,
                                                 absl::FunctionRef<bool(EntryId)> may_take) {
  Pick pick(*this);
  int64_t picked_bytes = 0;
  while (picked_bytes < bytes) {
    const EntryId id = NextVictim();
    if (id == kNoEntry) break;
    if (!may_take(id)) continue;
    pick.Take(id);
    picked_bytes += nodes_[id].bytes;
  }
  return pick.taken;
}

}  // namespace pagoda::policy
