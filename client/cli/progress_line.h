// What a long step is doing, for people who wait: on a terminal one line that counts seconds and is
// wiped away at the end; elsewhere one plain line when the step begins.
//
// Threads    one; it has a thread of its own for the clock
// Ownership  the line stands while the object lives
#pragma once

#include <cstdio>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace pagoda::cli {

class ProgressLine {
 public:
  // `expected_seconds` of the whole step, 0 when nobody knows: a share is shown with it.
  ProgressLine(FILE* stream, std::string step, double expected_seconds = 0);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // A share that is known better than by time, in [0, 1].
  void set_share(double share) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  FILE* const stream_;
  const std::string step_;
  const double expected_seconds_;
  const absl::Duration start_;
  const bool terminal_;

  absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  double share_ ABSL_GUARDED_BY(mutex_) = -1;  // negative: by time
  std::thread thread_;                         // last; only on a terminal
};

// "    prefill of 2,560 tokens   3.2 s, 45 %, 4 s left": the text of the line. A negative share:
// none.
std::string ProgressText(const std::string& step, double elapsed_seconds, double share);

}  // namespace pagoda::cli
