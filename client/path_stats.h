// What a client moved by each path, and how long it took.
//
// Threads    PathCounter: every method from any thread. The rest are values.
// Cost       of a count: a lock that is held for some additions
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace pagoda::client {

// Of one path. Times are of whole fetches and of single pushed pages, from the call to its end;
// they are exact to a fifth, and zero where there was none.
struct PathStats {
  int64_t fetches = 0;
  int64_t fetched_pages = 0;
  int64_t fetched_bytes = 0;
  int64_t pushed_pages = 0;
  int64_t pushed_bytes = 0;
  int64_t fallbacks = 0;  // fetches and pushed pages that began here and went on by another path
  absl::Duration fetch_p50;
  absl::Duration fetch_p99;
  absl::Duration push_p50;
  absl::Duration push_p99;

  bool any() const { return fetches + pushed_pages + fallbacks > 0; }
  // "shm: fetched 12 pages, 1.5 MB in 3 fetches (p50 210 us, p99 1.2 ms); pushed ...", without \n.
  std::string ToLine(absl::string_view path) const;
};

// How often something took how long, in steps of a fifth, from a microsecond to hours.
class TimeHistogram {
 public:
  void Add(absl::Duration took);
  // The upper edge of the step that holds this share of all; zero: nothing was added.
  absl::Duration Quantile(double share) const;

 private:
  static constexpr size_t kSteps = 128;
  std::array<int64_t, kSteps> counts_{};
  int64_t total_ = 0;
};

class PathCounter {
 public:
  // The pages that this path gave of a fetch that took so long.
  void AddFetch(int64_t pages, int64_t bytes, absl::Duration took) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddPush(int64_t bytes, absl::Duration took) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddFallback() ABSL_LOCKS_EXCLUDED(mutex_);
  PathStats Stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  PathStats stats_ ABSL_GUARDED_BY(mutex_);  // but for the times
  TimeHistogram fetches_ ABSL_GUARDED_BY(mutex_);
  TimeHistogram pushes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::client
