#include "storage/policy/keyed_policy.h"

#include <algorithm>
#include <functional>

namespace pagoda::policy {

void KeyedPolicy::KeyLowered(EntryId id) {
  if (MayGo(id)) Push(id);
}

void KeyedPolicy::KeysChanged() {
  OfferAgain();
  DropStale();
}

void KeyedPolicy::ForEachEvictable(absl::FunctionRef<void(EntryId)> visit) {
  OfferAgain();
  DropStale();
  for (const Candidate& candidate : heap_) visit(candidate.id());
}

void KeyedPolicy::OfferAgain() {
  for (const EntryId id : offered_) Offer(id);
  offered_.clear();
}

EntryId KeyedPolicy::NextVictim() {
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Candidate candidate = heap_.back();
    heap_.pop_back();
    const EntryId id = candidate.id();
    if (!MayGo(id)) {
      set_queued(id, false);  // offered again when it may
      continue;
    }
    const uint64_t key = KeyOf(id);
    if (candidate.key() > key) continue;  // it stands before this one too, under its lowered key
    if (candidate.key() < key) {
      Push(id);
      continue;
    }
    set_queued(id, false);
    offered_.push_back(id);
    return id;
  }
  return kNoEntry;
}

void KeyedPolicy::Push(EntryId id) {
  // Most stale candidates are dropped when they surface; a heap that is mostly stale is rebuilt.
  if (heap_.size() > 64 && heap_.size() > 2 * static_cast<size_t>(entry_count())) DropStale();
  set_queued(id, true);
  // By an eighth, not by doubling.
  if (heap_.size() == heap_.capacity()) heap_.reserve(heap_.size() + heap_.size() / 8 + 64);
  heap_.push_back({KeyOf(id), id});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void KeyedPolicy::DropStale() {
  std::sort(heap_.begin(), heap_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id() < b.id(); });
  size_t kept = 0;
  for (size_t i = 0; i < heap_.size(); ++i) {
    const EntryId id = heap_[i].id();
    if (i > 0 && heap_[i - 1].id() == id) continue;
    if (MayGo(id)) {
      heap_[kept++] = {KeyOf(id), id};
    } else {
      set_queued(id, false);
    }
  }
  heap_.erase(heap_.begin() + static_cast<std::ptrdiff_t>(kept), heap_.end());
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
}

int64_t KeyedPolicy::memory_bytes() const {
  return EvictionPolicy::memory_bytes() +
         static_cast<int64_t>(heap_.capacity() * sizeof(Candidate) +
                              offered_.capacity() * sizeof(EntryId));
}

}  // namespace pagoda::policy
