#include "client/cli/interrupt.h"

#include <signal.h>

#include <algorithm>
#include <atomic>

#include "absl/time/clock.h"

namespace pagoda::cli {
namespace {

// Set by the handler. Lock-free and alone: no other memory is published by it, so relaxed.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void OnInterrupt(int signal_number) {
  if (interrupted.exchange(true, std::memory_order_relaxed)) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);
  }
}

}  // namespace

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);
}

bool Interrupted() { return interrupted.load(std::memory_order_relaxed); }

absl::Status CheckInterrupted() {
  return Interrupted() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

bool SleepUnlessInterrupted(absl::Duration duration) {
  // A signal may come to another thread: slices bound how late this one sees it.
  constexpr absl::Duration kSlice = absl::Milliseconds(50);
  const absl::Time end = absl::Now() + duration;
  while (!Interrupted()) {
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return true;
    absl::SleepFor(std::min(left, kSlice));
  }
  return false;
}

}  // namespace pagoda::cli
