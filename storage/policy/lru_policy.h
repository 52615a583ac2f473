// Leaf-first LRU: the least recently used entry that has no resident child goes first.
//
// Cost       that of KeyedPolicy; Touch is O(1)
#pragma once

#include <cstdint>

#include "storage/policy/keyed_policy.h"

namespace pagoda::policy {

class LruPolicy final : public KeyedPolicy {
 public:
  using KeyedPolicy::KeyedPolicy;
  absl::string_view name() const override { return "lru"; }

 protected:
  void OnInsert(const NewEntry& entry) override { OnTouch(entry.id); }
  void OnTouch(EntryId id) override {
    word(id) = next_sequence_++;
    KeyRaised(id);
  }
  uint64_t KeyOf(EntryId id) const override { return word(id); }

 private:
  uint64_t next_sequence_ = 1;
};

}  // namespace pagoda::policy
