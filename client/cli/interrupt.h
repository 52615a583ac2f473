// ^C and SIGTERM as a flag: long commands look at it, clean up and leave in order. A second signal
// ends the process at once.
//
// Threads    CatchInterrupts() from main's thread, once; the rest from any thread
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace pagoda::cli {

void CatchInterrupts();
bool Interrupted();
// OK, or CANCELLED "interrupted".
absl::Status CheckInterrupted();

// Sleeps, at most until an interrupt. False when interrupted.
bool SleepUnlessInterrupted(absl::Duration duration);

}  // namespace pagoda::cli
