// Fingerprints of what went last: a memory of entries without their bytes.
//
// Cost       O(1) an operation; about 30 bytes a fingerprint
#pragma once

#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"

namespace pagoda::policy {

class GhostList {
 public:
  // The newest. One that is there already becomes the newest.
  void Add(uint64_t fingerprint) {
    order_.push_back(fingerprint);
    newest_[fingerprint] = first_ + order_.size() - 1;
  }
  // Whether it was there; it is no more.
  bool Take(uint64_t fingerprint) { return newest_.erase(fingerprint) > 0; }
  // Forgets the oldest beyond `count`. Places of taken ones count too.
  void Trim(int64_t count) {
    while (static_cast<int64_t>(order_.size()) > count) {
      const auto it = newest_.find(order_.front());
      if (it != newest_.end() && it->second == first_) newest_.erase(it);
      order_.pop_front();
      ++first_;
    }
  }
  int64_t size() const { return static_cast<int64_t>(newest_.size()); }

 private:
  std::deque<uint64_t> order_;  // oldest first
  uint64_t first_ = 0;          // the number of the oldest, counted from the beginning
  absl::flat_hash_map<uint64_t, uint64_t> newest_;  // fingerprint -> its last number
};

}  // namespace pagoda::policy
