// What is brought up ahead of requests, and how much of the machine that may take.
//
// Errors     INVALID_ARGUMENT names the field, its value and what is accepted
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/prefetch/hotness.h"
#include "storage/prefetch/prefetch_page.h"
#include "storage/prefetch/return_predictor.h"
#include "storage/prefetch/successor_table.h"

namespace pagoda::prefetch {

struct Options {
  // Behaviour: which sources may ask. All off: pages come up only when a request finds them.
  bool sequence = true;
  bool hint = true;
  bool predicted_return = true;
  bool next_page = true;
  bool hotness = true;
  bool Enabled(Source source) const {
    return std::array{sequence, hint, predicted_return, next_page,
                      hotness}[static_cast<size_t>(source)];
  }
  // For OrderByLayer: about a prefill block of a small model. Too short only means a bit early.
  absl::Duration layer_time = absl::Milliseconds(2);
  absl::Duration hint_deadline = absl::Seconds(30);  // of a hint that names none

  // Performance.
  int64_t bytes_per_second = int64_t{256} << 20;  // of reads nobody waits for: a part of one disk
  int64_t queue_pages_max = 8192;
  int64_t loads_max = 8;  // at a time: a request that waits is never behind more than these
  SuccessorTable::Options successors;
  Hotness::Options heat;
  ReturnPredictor::Options returns;

  absl::Status Validate() const;
};

}  // namespace pagoda::prefetch
