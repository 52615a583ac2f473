#include "storage/device/link_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace pagoda {

absl::Status LinkTimes::Validate() const {
  if (join_timeout <= absl::ZeroDuration() || pause_min <= absl::ZeroDuration() ||
      pause_max < pause_min) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "peer link: join_timeout %s, pause_min %s and pause_max %s must be positive and in order",
        absl::FormatDuration(join_timeout), absl::FormatDuration(pause_min),
        absl::FormatDuration(pause_max)));
  }
  return absl::OkStatus();
}

absl::Status LinkMachine::Join(absl::Duration now) {
  if (phase_ != Phase::kIdle && phase_ != Phase::kBroken) {
    return absl::FailedPreconditionError("peer link: there is a connection already");
  }
  if (now < join_from_) {
    return absl::UnavailableError(absl::StrFormat("peer link: broken (%s), joins again in %s",
                                                  fault_.message(),
                                                  absl::FormatDuration(join_from_ - now)));
  }
  phase_ = Phase::kJoining;
  deadline_ = now + times_.join_timeout;
  return absl::OkStatus();
}

absl::Status LinkMachine::Start(absl::Duration now, absl::Duration timeout) {
  if (phase_ != Phase::kReady) {
    return absl::FailedPreconditionError(
        absl::StrFormat("peer link: not ready (phase %d)", static_cast<int>(phase_)));
  }
  phase_ = Phase::kStarting;
  deadline_ = now + timeout;
  return absl::OkStatus();
}

LinkMachine::Action LinkMachine::Step(absl::Duration now, const absl::StatusOr<bool>& progress) {
  if (phase_ == Phase::kIdle || phase_ == Phase::kBroken) return Action::kWait;
  if (phase_ == Phase::kDraining) {
    // An error says that the device is lost and does nothing more.
    if (progress.ok() && !*progress) return Action::kWait;
    phase_ = Phase::kBroken;
    return Action::kRelease;
  }
  if (!progress.ok()) return Break(now, progress.status());
  if (!*progress) {
    if (phase_ == Phase::kReady || now < deadline_) return Action::kWait;
    return Break(now, absl::DeadlineExceededError(phase_ == Phase::kJoining
                                                      ? "the peer did not join in time"
                                                      : "the transfer was not done in time"));
  }
  switch (phase_) {
    case Phase::kJoining:
      phase_ = Phase::kReady;
      return Action::kWait;
    case Phase::kStarting:
      phase_ = Phase::kRunning;
      return Action::kFollow;
    case Phase::kRunning:
      phase_ = Phase::kReady;
      failures_in_row_ = 0;  // a join alone proves little
      return Action::kComplete;
    default:
      return Action::kWait;
  }
}

LinkMachine::Action LinkMachine::Break(absl::Duration now, absl::Status fault) {
  fault_ = std::move(fault);
  const bool has_request = phase_ == Phase::kStarting || phase_ == Phase::kRunning;
  phase_ = has_request ? Phase::kDraining : Phase::kBroken;
  absl::Duration pause = times_.pause_min;
  for (int i = 0; i < failures_in_row_ && pause < times_.pause_max; ++i) pause *= 2;
  join_from_ = now + std::min(pause, times_.pause_max);
  ++failures_in_row_;
  return Action::kAbort;
}

}  // namespace pagoda
