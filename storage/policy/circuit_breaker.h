// Decides when a sick disk is left alone, and when it is worth another try. A pure state machine:
// outcomes and the time go in, the state comes out.
//
//   closed --(failures_max failures in a row, or one operation that hangs)--> open
//   open --(after its period: BeginProbe)--> half-open
//   half-open --(probe succeeds)--> closed        --(fails or hangs)--> open, the period doubled
//
// Every change of state begins a new epoch. An outcome belongs to the epoch in which its operation
// began; one of an earlier epoch is stale and changes nothing.
//
// Threads  externally synchronised
// Source   the pattern as in Nygard, Release It!, and LMCache's L2 adapters
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pagoda::policy {

enum class BreakerState : uint8_t { kClosed = 0, kOpen = 1, kHalfOpen = 2 };
enum class BreakerOutcome : uint8_t {
  kOk = 0,
  kFailed = 1,
  kHung = 2,     // has not ended; opens at once
  kNeutral = 3,  // says nothing about health (the disk is full, the page is gone)
};
enum class BreakerReason : uint8_t { kErrors = 0, kSlow = 1, kHung = 2, kProbe = 3 };
constexpr int kBreakerReasonCount = 4;

constexpr absl::string_view BreakerStateName(BreakerState state) {
  constexpr absl::string_view kNames[] = {"closed", "open", "half_open"};
  return kNames[static_cast<int>(state)];
}
constexpr absl::string_view BreakerReasonName(BreakerReason reason) {
  constexpr absl::string_view kNames[] = {"errors", "slow", "hung", "probe"};
  return kNames[static_cast<int>(reason)];
}

class CircuitBreaker {
 public:
  using Epoch = uint64_t;
  struct Options {
    int32_t failures_max = 3;                     // in a row
    absl::Duration slow = absl::Seconds(2);       // who takes longer has failed
    absl::Duration open_min = absl::Seconds(5);   // first period
    absl::Duration open_max = absl::Minutes(5);   // doubling ends here
    absl::Duration probe_max = absl::Seconds(5);  // a probe that takes longer hangs
  };

  explicit CircuitBreaker(const Options& options) : options_(options) {}

  bool closed() const { return state_ == BreakerState::kClosed; }
  BreakerState state() const { return state_; }
  Epoch epoch() const { return epoch_; }
  // Why it opened last, and how often it has for each reason.
  BreakerReason reason() const { return reason_; }
  int64_t trip_count(BreakerReason reason) const { return trips_[static_cast<int>(reason)]; }
  absl::Duration open_period() const { return period_; }

  // An operation that began in `epoch` took so long and ended so (or hangs). True: it has opened.
  bool Report(Epoch epoch, BreakerOutcome outcome, absl::Duration took, absl::Duration now);

  // True: it is time for a probe; the caller makes one and reports it. Also notices that a probe
  // hangs, and then waits for another period.
  bool BeginProbe(absl::Duration now);
  // True: the state has changed (to closed, or back to open).
  bool EndProbe(Epoch epoch, bool ok, absl::Duration now);

 private:
  void Open(BreakerReason reason, absl::Duration now);

  const Options options_;
  BreakerState state_ = BreakerState::kClosed;
  BreakerReason reason_ = BreakerReason::kErrors;
  Epoch epoch_ = 1;
  int32_t failures_ = 0;       // in a row, while closed
  bool all_slow_ = true;       // those failures were slow successes
  absl::Duration period_;      // of the current or last opening
  absl::Duration changed_at_;  // open: when it opened; half-open: when the probe began
  int64_t trips_[kBreakerReasonCount] = {};
};

}  // namespace pagoda::policy
