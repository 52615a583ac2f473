// The steps by which the pages of a model come down, and to which precision one may go now. Pure.
//
//   fresh      once no open sequence needs more
//   idle       when nobody has used the page for idle_after
//   pressure   while host memory is above its watermark, the coldest pages first
//   ssd        in the copy on SSD; the one in memory keeps what it has
//
// A step that is not set is not taken; nor is one that is not lower than what was reached before
// it. In memory no step goes below what open sequences need. What is on SSD is what comes back when
// the page has left memory: a lookup that names a higher lowest precision then misses, as always.
//
// Why pressure is off unless it is set: the operator chose the quality of the hits; memory that
// runs short costs hits on SSD first, and quality only where that was allowed.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache-server/sequence_table.h"
#include "storage/base/precision.h"

namespace pagoda {

struct Ladder {
  Ladder() = default;
  Ladder(Precision precision) : fresh(precision) {}  // NOLINT: `ladder: q8` is a ladder

  Precision fresh = Precision::kQ8;
  std::optional<Precision> idle;
  absl::Duration idle_after = absl::InfiniteDuration();
  std::optional<Precision> pressure;
  std::optional<Precision> ssd;
  bool operator==(const Ladder&) const = default;
};

// To which precision a page in memory may go.
inline Precision TargetPrecision(const PageNeed& need, const Ladder& ladder,
                                 absl::Duration idle = absl::ZeroDuration(),
                                 bool pressure = false) {
  Precision target = ladder.fresh;
  if (ladder.idle.has_value() && idle >= ladder.idle_after) target = std::min(target, *ladder.idle);
  if (ladder.pressure.has_value() && pressure) target = std::min(target, *ladder.pressure);
  return std::max(target, need.precision);
}

// At which precision a page is written to SSD that has `stored` in memory.
inline Precision SsdPrecision(const Ladder& ladder, Precision stored) {
  return ladder.ssd.has_value() ? std::min(stored, *ladder.ssd) : stored;
}

// "q8", or "q8, idle 10m q4, pressure q4, ssd q4": for people and the log.
std::string LadderText(const Ladder& ladder);

}  // namespace pagoda
