#include "storage/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace pagoda {
namespace {

class MachineClock : public Clock {
 public:
  absl::Duration Monotonic() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  int64_t UnixSeconds() const override { return absl::ToUnixSeconds(absl::Now()); }
};

}  // namespace

const Clock& SystemClock() {
  static const MachineClock* clock = new MachineClock;
  return *clock;
}

}  // namespace pagoda
