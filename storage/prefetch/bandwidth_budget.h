// Bytes a second, with a little saved up. Time comes as an argument. Pure.
//
// It opens whenever something is left and lets whole items into debt, so that an item larger than
// the burst is not stuck: over any time T at most rate * T + burst + one item passes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace pagoda::prefetch {

class BandwidthBudget {
 public:
  BandwidthBudget(int64_t bytes_per_second, absl::Duration saved_max)
      : rate_(static_cast<double>(bytes_per_second)),
        burst_(rate_ * absl::ToDoubleSeconds(saved_max)),
        balance_(burst_) {}

  bool Open(absl::Duration now) {
    if (now > last_) {
      balance_ = std::min(burst_, balance_ + rate_ * absl::ToDoubleSeconds(now - last_));
      last_ = now;
    }
    return balance_ > 0;
  }
  void Take(int64_t bytes) { balance_ -= static_cast<double>(bytes); }

 private:
  const double rate_;
  const double burst_;
  double balance_;
  absl::Duration last_ = absl::ZeroDuration();
};

}  // namespace pagoda::prefetch
