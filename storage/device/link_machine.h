// The states of a connection of two GPUs, as decisions: what was seen goes in, what to do comes
// out. Pure: no transport, no clock. peer_link.h carries it out.
//
//   idle --Join--> joining --> ready --Start--> starting --> running --> ready
//     ^               |          |                 |            |
//     |            fault or deadline: abort, always; a connection is never used after an error
//     |               v          v                 v            v
//   broken <------------- draining: until the device is done with the memory of the request
//      `--Join, when the pause is over: with a new id, both sides
//
// Threads  one at a time
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace pagoda {

struct LinkTimes {
  absl::Duration join_timeout = absl::Seconds(10);  // NCCL's bootstrap over a slow network
  absl::Duration pause_min = absl::Seconds(1);      // after the first failure in a row
  absl::Duration pause_max = absl::Seconds(60);
  absl::Status Validate() const;
};

class LinkMachine {
 public:
  enum class Phase : uint8_t { kIdle, kJoining, kReady, kStarting, kRunning, kDraining, kBroken };
  enum class Action : uint8_t {
    kWait,      // nothing to do before the next step
    kFollow,    // the transfer is in the stream: put behind it what follows, and the event
    kComplete,  // the request has ended well
    kAbort,     // abort the connection; then fail the request, if there is one
    kRelease,   // let go of the memory of the request that failed
  };

  explicit LinkMachine(const LinkTimes& times) : times_(times) {}

  Phase phase() const { return phase_; }
  // Why the last connection broke; OK before the first did.
  const absl::Status& fault() const { return fault_; }

  // FAILED_PRECONDITION: there is a connection. UNAVAILABLE: too soon after a failure.
  absl::Status Join(absl::Duration now);
  // FAILED_PRECONDITION: not ready.
  absl::Status Start(absl::Duration now, absl::Duration timeout);
  // `progress`: whether what the phase waits for has come; an error is a fault.
  Action Step(absl::Duration now, const absl::StatusOr<bool>& progress);

 private:
  Action Break(absl::Duration now, absl::Status fault);

  const LinkTimes times_;
  Phase phase_ = Phase::kIdle;
  absl::Status fault_;
  absl::Duration deadline_;
  absl::Duration join_from_ = -absl::InfiniteDuration();
  int failures_in_row_ = 0;
};

}  // namespace pagoda
