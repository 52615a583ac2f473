// Values that many entries share, stored once and counted: an entry holds a 4-byte number instead.
// A value goes with its last holder, so that values chosen by clients cannot pile up.
//
// Threads  externally synchronised
// Limits   2^32 - 1 distinct values; T has operator== and AbslHashValue
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/base/check.h"

namespace pagoda {

using InternId = uint32_t;  // 0 is no value

template <typename T>
class InternTable {
 public:
  // The number of the value, with one holder more.
  InternId Acquire(const T& value) {
    const auto [it, fresh] = ids_.try_emplace(value, InternId{0});
    if (fresh) it->second = TakeSlot(value);
    ++slots_[it->second].holders;
    return it->second;
  }
  // One holder less. 0 is ignored.
  void Release(InternId id) {
    if (id == 0) return;
    Slot& slot = slots_[id];
    PAGODA_CHECK(slot.holders > 0);
    if (--slot.holders > 0) return;
    ids_.erase(slot.value);
    slot.value = T{};
    free_.push_back(id);
  }
  const T& at(InternId id) const { return slots_[id].value; }
  int64_t value_count() const { return static_cast<int64_t>(ids_.size()); }
  int64_t memory_bytes() const {
    return static_cast<int64_t>(slots_.capacity() * sizeof(Slot) +
                                free_.capacity() * sizeof(InternId) +
                                ids_.capacity() * (sizeof(std::pair<T, InternId>) + 1));
  }

 private:
  struct Slot {
    T value{};
    uint32_t holders = 0;
  };
  InternId TakeSlot(const T& value) {
    if (free_.empty()) {
      slots_.push_back({value});
      return static_cast<InternId>(slots_.size() - 1);
    }
    const InternId id = free_.back();
    free_.pop_back();
    slots_[id].value = value;
    return id;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1);
  std::vector<InternId> free_;
  absl::flat_hash_map<T, InternId> ids_;
};

}  // namespace pagoda
