// How far back re-used pages were last used, from a sample: an LRU stack of page fingerprints cut
// in bands of one, two, four and eight times a tier's capacity. A page re-used in the first band is
// a hit of an LRU cache of that capacity; in the second, of one twice as large; and so on. That is
// the miss ratio curve of LRU at the capacities that matter, at a cost that does not grow with the
// tier.
//
// Sampling is spatial, as SHARDS has it: a page is in the sample for good or not at all, by its
// fingerprint. Distances in the sample times 2^shift are distances in the stream.
//
// Pure. Threads    externally synchronised
// Limits           kSampleMax pages in the sample, whatever the tier holds
// Cost             Use: O(1) amortised; 40 to 60 bytes a sampled page: at most 4 MiB
// Source           Waldspurger et al., SHARDS (FAST '15)
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace pagoda::policy {

class ReuseStack {
 public:
  static constexpr int kBandCount = 4;
  static constexpr int kNoBand = -1;
  static constexpr int64_t kSampleMax = int64_t{1} << 16;

  // Bands of 1, 2, 4, 8 times these bytes; sampled such that a tier with `entry_count` entries in
  // that space gives between 16384 and kSampleMax sampled pages where it can. Cheap when little
  // changes.
  void Fit(int64_t capacity_bytes, int64_t entry_count);

  bool Samples(uint64_t fingerprint) const {
    return shift_ == 0 || Mixed(fingerprint) >> (64 - shift_) == 0;
  }
  // Counts a use. The band in which its last use was found, or kNoBand: too long ago, or never.
  // REQUIRES: Samples(fingerprint).
  int Use(uint64_t fingerprint, int64_t bytes);

  int64_t capacity_bytes() const { return capacity_bytes_; }
  int shift() const { return shift_; }
  int64_t sampled_count() const { return static_cast<int64_t>(index_.size()); }

 private:
  using Slot = uint32_t;
  static constexpr Slot kNoSlot = ~Slot{0};
  struct Node {
    uint64_t fingerprint = 0;
    int64_t bytes = 0;
    Slot newer = kNoSlot;
    Slot older = kNoSlot;
    int32_t band = 0;
  };
  struct Band {
    int64_t bytes = 0;
    Slot oldest = kNoSlot;  // kNoSlot: empty
  };

  static uint64_t Mixed(uint64_t x);
  int64_t BandBytes(int band) const;
  void Unlink(Slot slot);
  void PushNewest(Slot slot);
  void Settle();  // moves what overflows a band to the next, and out of the last
  void Forget(Slot slot);

  int shift_ = 0;
  int64_t capacity_bytes_ = 0;
  std::vector<Node> nodes_;
  std::vector<Slot> free_;
  std::array<Band, kBandCount> bands_;
  Slot newest_ = kNoSlot;
  absl::flat_hash_map<uint64_t, Slot> index_;
};

}  // namespace pagoda::policy
