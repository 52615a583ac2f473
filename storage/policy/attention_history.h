// The last five attention masses that were reported of each entry, and their mean. Masses are kept
// as bfloat16 (8 bits of precision, rounded to nearest), whose bits sort like the numbers.
//
// Threads    externally synchronised
// Limits     masses from 0 to 1e30; greater ones count as that
// Cost       12 bytes an id, from the first report on
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "storage/policy/eviction_policy.h"

namespace pagoda::policy {

class AttentionHistory {
 public:
  static constexpr int kMassCount = 5;

  void Add(EntryId id, double mass);  // REQUIRES: finite, not negative
  void Forget(EntryId id);

  // The mean's bfloat16 bits; nullopt: nothing was reported.
  std::optional<uint16_t> MeanBits(EntryId id) const;
  // That of the mean entry: the mean of all means there are; 0 without any.
  uint16_t AverageBits() const;
  int64_t entry_count() const { return entry_count_; }

 private:
  struct Masses {
    std::array<uint16_t, kMassCount> bits;  // a ring
    uint8_t count = 0;
    uint8_t next = 0;
  };
  static double MeanOf(const Masses& masses);

  std::vector<Masses> masses_;
  double mean_sum_ = 0;  // of all entries with masses
  int64_t entry_count_ = 0;
};

}  // namespace pagoda::policy
