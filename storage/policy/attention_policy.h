// Leaf-first by attention: the entry with the least mean of its last five reported masses goes
// first; of equals, the least recently used. An entry of which nothing was reported counts, as of
// its last use, as an average one: so without any report this is LRU.
//
// Cost       that of KeyedPolicy and of AttentionHistory; Touch is O(1) unless the average fell
#pragma once

#include <cstdint>

#include "storage/policy/attention_history.h"
#include "storage/policy/keyed_policy.h"
#include "storage/policy/use_word.h"

namespace pagoda::policy {

class AttentionPolicy final : public KeyedPolicy {
 public:
  using KeyedPolicy::KeyedPolicy;
  absl::string_view name() const override { return "attention"; }

 protected:
  void OnInsert(const NewEntry& entry) override { OnTouch(entry.id); }
  void OnTouch(EntryId id) override {
    SetWord(id, MakeUseWord(history_.MeanBits(id).value_or(history_.AverageBits()), next_time_++));
  }
  void OnReport(EntryId id, double mass) override {
    history_.Add(id, mass);
    SetWord(id, MakeUseWord(*history_.MeanBits(id), UseTimeOf(word(id))));
  }
  void OnRemove(EntryId id) override { history_.Forget(id); }
  uint64_t KeyOf(EntryId id) const override { return word(id); }

 private:
  void SetWord(EntryId id, uint64_t use_word) {
    const uint64_t before = word(id);
    word(id) = use_word;
    use_word < before ? KeyLowered(id) : KeyRaised(id);
  }

  AttentionHistory history_;
  uint64_t next_time_ = 1;
};

}  // namespace pagoda::policy
