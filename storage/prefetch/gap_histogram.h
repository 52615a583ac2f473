// How long conversations pause between turns: a histogram of gaps in steps of a quarter octave,
// from a sixteenth of a second to three days, whose counts fade. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace pagoda::prefetch {

class GapHistogram {
 public:
  void Add(absl::Duration gap);
  int64_t count() const { return count_; }
  // The gap that a share `quantile` of all stays below: the lower edge of its step, or the upper.
  absl::Duration LowerEdge(double quantile) const;
  absl::Duration UpperEdge(double quantile) const;

 private:
  static constexpr int kSteps = 90;
  static constexpr int64_t kCountMax = 1024;  // then all counts are halved
  int StepOf(double quantile) const;
  std::array<uint16_t, kSteps> counts_{};
  int64_t count_ = 0;
};

}  // namespace pagoda::prefetch
