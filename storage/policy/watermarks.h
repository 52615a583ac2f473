// When a tier starts to make room, when it stops, and when it refuses. Pure numbers.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace pagoda::policy {

struct Watermarks {
  double start = 0.85;  // demotion begins at this share of the capacity,
  double stop = 0.75;   // goes on down to this one (the gap keeps it from starting all the time),
  double hard = 0.95;   // and beyond this one new bytes are refused

  // INVALID_ARGUMENT unless 0 < stop < start < hard <= 1.
  absl::Status Validate() const;

  // Bytes to free now: down to `stop` once `used` has reached `start`, else 0.
  int64_t ExcessBytes(int64_t used_bytes, int64_t capacity_bytes) const;
  // Bytes to free so that `asked` more stay within `hard`; 0 when they do already.
  int64_t ShortBytes(int64_t used_bytes, int64_t asked_bytes, int64_t capacity_bytes) const;
};

}  // namespace pagoda::policy
