// A clock that moves only when the test says so.
#pragma once

#include <atomic>

#include "storage/base/clock.h"

namespace pagoda {

class FakeClock : public Clock {
 public:
  absl::Duration Monotonic() const override { return absl::Nanoseconds(nanos_.load()); }
  int64_t UnixSeconds() const override { return 1'700'000'000 + nanos_.load() / 1'000'000'000; }
  void Advance(absl::Duration step) { nanos_ += absl::ToInt64Nanoseconds(step); }

 private:
  std::atomic<int64_t> nanos_{1'000'000'000};  // seq_cst: a test has no reason to be clever
};

}  // namespace pagoda
