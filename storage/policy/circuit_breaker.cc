#include "storage/policy/circuit_breaker.h"

#include <algorithm>

namespace pagoda::policy {

void CircuitBreaker::Open(BreakerReason reason, absl::Duration now) {
  // A probe that fails makes it wait longer; a fresh trip starts over.
  period_ = state_ == BreakerState::kHalfOpen ? std::min(2 * period_, options_.open_max)
                                              : options_.open_min;
  state_ = BreakerState::kOpen;
  reason_ = reason;
  changed_at_ = now;
  ++epoch_;
  ++trips_[static_cast<int>(reason)];
}

bool CircuitBreaker::Report(Epoch epoch, BreakerOutcome outcome, absl::Duration took,
                            absl::Duration now) {
  if (state_ != BreakerState::kClosed || epoch != epoch_) return false;
  if (outcome == BreakerOutcome::kHung) {
    Open(BreakerReason::kHung, now);
    return true;
  }
  if (outcome == BreakerOutcome::kNeutral) return false;
  const bool slow = outcome == BreakerOutcome::kOk && took > options_.slow;
  if (outcome == BreakerOutcome::kOk && !slow) {
    failures_ = 0;
    return false;
  }
  all_slow_ = slow && (failures_ == 0 || all_slow_);
  if (++failures_ < options_.failures_max) return false;
  Open(all_slow_ ? BreakerReason::kSlow : BreakerReason::kErrors, now);
  return true;
}

bool CircuitBreaker::BeginProbe(absl::Duration now) {
  if (state_ == BreakerState::kHalfOpen && now - changed_at_ > options_.probe_max) {
    Open(BreakerReason::kProbe, now);
  }
  if (state_ != BreakerState::kOpen || now - changed_at_ < period_) return false;
  state_ = BreakerState::kHalfOpen;
  changed_at_ = now;
  ++epoch_;
  return true;
}

bool CircuitBreaker::EndProbe(Epoch epoch, bool ok, absl::Duration now) {
  if (state_ != BreakerState::kHalfOpen || epoch != epoch_) return false;
  if (!ok) {
    Open(BreakerReason::kProbe, now);
    return true;
  }
  state_ = BreakerState::kClosed;
  failures_ = 0;
  ++epoch_;
  return true;
}

}  // namespace pagoda::policy
