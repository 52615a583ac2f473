#include "client/cli/progress_line.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/clock.h"

namespace pagoda::cli {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(200);

}  // namespace

ProgressLine::ProgressLine(FILE* stream, std::string step, double expected_seconds)
    : stream_(stream),
      step_(std::move(step)),
      expected_seconds_(expected_seconds),
      start_(SystemClock().Monotonic()),
      terminal_(isatty(fileno(stream)) != 0) {
  if (terminal_) {
    thread_ = std::thread([this] { Run(); });
  } else {
    std::fprintf(stream_, "  %s ...\n", step_.c_str());
    std::fflush(stream_);
  }
}

ProgressLine::~ProgressLine() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }
  thread_.join();
  std::fputs("\r\x1b[K", stream_);
  std::fflush(stream_);
}

void ProgressLine::set_share(double share) {
  absl::MutexLock lock(&mutex_);
  share_ = std::clamp(share, 0.0, 1.0);
}

void ProgressLine::Run() {
  while (true) {
    double share = -1;
    {
      absl::MutexLock lock(&mutex_);
      if (done_) return;
      share = share_;
    }
    const double elapsed = absl::ToDoubleSeconds(SystemClock().Monotonic() - start_);
    if (share < 0 && expected_seconds_ > 0) share = std::min(0.99, elapsed / expected_seconds_);
    std::fprintf(stream_, "\r%s\x1b[K", ProgressText(step_, elapsed, share).c_str());
    std::fflush(stream_);
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&done_), kRedraw);
  }
}

std::string ProgressText(const std::string& step, double elapsed_seconds, double share) {
  std::string text = absl::StrFormat("  %s   %.1f s", step, elapsed_seconds);
  if (share < 0) return text;
  absl::StrAppendFormat(&text, ", %.0f %%", share * 100);
  // Before this the rest is a guess.
  if (share >= 0.02) {
    absl::StrAppendFormat(&text, ", %.0f s left", elapsed_seconds / share * (1 - share));
  }
  return text;
}

}  // namespace pagoda::cli
