// A byte-rate limit. It says how long to wait before the next piece of work may begin; it never
// waits itself.
//
// Units    bytes, bytes a second
// Threads  externally synchronised
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace pagoda::policy {

class TokenBucket {
 public:
  // At most `burst_bytes` at once after a pause. Rate 0: no limit.
  TokenBucket(int64_t bytes_per_second, int64_t burst_bytes);

  // Takes `bytes`, more than there are if need be, and returns when the work may begin, counted
  // from `now`: zero while the bucket was not empty. `now` never goes back.
  absl::Duration Take(int64_t bytes, absl::Duration now);

 private:
  const double bytes_per_second_;
  const double burst_bytes_;
  double level_bytes_;
  absl::Duration filled_at_;
};

}  // namespace pagoda::policy
