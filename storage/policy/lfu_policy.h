// Leaf-first LFU: the entry with the fewest uses while it was resident goes first; of equals, the
// least recently used. Its insertion is its first use.
//
// Limits     65535 uses; more are not told apart
// Cost       that of KeyedPolicy; Touch is O(1)
#pragma once

#include <cstdint>

#include "storage/policy/keyed_policy.h"
#include "storage/policy/use_word.h"

namespace pagoda::policy {

class LfuPolicy final : public KeyedPolicy {
 public:
  using KeyedPolicy::KeyedPolicy;
  absl::string_view name() const override { return "lfu"; }

 protected:
  void OnInsert(const NewEntry& entry) override { OnTouch(entry.id); }
  void OnTouch(EntryId id) override {
    word(id) = MakeUseWord(OneMore(WorthOf(word(id))), next_time_++);
    KeyRaised(id);
  }
  uint64_t KeyOf(EntryId id) const override { return word(id); }

 private:
  uint64_t next_time_ = 1;
};

}  // namespace pagoda::policy
