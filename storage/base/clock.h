// Time, passed in. Leases and ages run on the monotonic clock, so that a jump of the wall clock
// neither ends a lease nor makes one eternal; the wall clock only labels pages.
//
// Threads  every method may be called from any thread.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace pagoda {

class Clock {
 public:
  virtual ~Clock() = default;
  // Time since an arbitrary fixed moment; never goes back.
  virtual absl::Duration Monotonic() const = 0;
  virtual int64_t UnixSeconds() const = 0;
};

// The machine's clock. Lives as long as the process.
const Clock& SystemClock();

}  // namespace pagoda
