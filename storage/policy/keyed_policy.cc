#include "storage/policy/keyed_policy.h"

#include <optional>

namespace pagoda::policy {

void KeyedPolicy::KeyLowered(EntryId id) {
  if (MayGo(id)) {
    Push(id);
  } else {
    set_queued(id, false);  // where it stands is too late: it is offered anew when it may go
  }
}

void KeyedPolicy::KeysChanged() {
  OfferAgain();
  Clean();
}

void KeyedPolicy::ForEachEvictable(absl::FunctionRef<void(EntryId)> visit) {
  OfferAgain();
  Clean();
  for (const Candidate& candidate : heap_.candidates()) visit(candidate.id());
}

void KeyedPolicy::OfferAgain() {
  for (const EntryId id : offered_) Offer(id);
  offered_.clear();
}

EntryId KeyedPolicy::NextVictim() {
  while (!heap_.empty()) {
    const Candidate candidate = heap_.Pop();
    const EntryId id = candidate.id();
    if (!MayGo(id)) {
      set_queued(id, false);  // offered again when it may
      continue;
    }
    const uint64_t key = KeyOf(id);
    if (candidate.key() > key) continue;  // it stood before this one too, under its lowered key
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
  if (heap_.MostlyStale(entry_count())) Clean();
  set_queued(id, true);
  heap_.Push({KeyOf(id), id});
}

void KeyedPolicy::Clean() {
  heap_.Clean([this](EntryId id) -> std::optional<uint64_t> {
    if (MayGo(id)) return KeyOf(id);
    set_queued(id, false);
    return std::nullopt;
  });
}

int64_t KeyedPolicy::memory_bytes() const {
  return EvictionPolicy::memory_bytes() + heap_.memory_bytes() +
         static_cast<int64_t>(offered_.capacity() * sizeof(EntryId));
}

}  // namespace pagoda::policy
