// Percentiles and medians of measured samples.
//
// Threads  pure functions.   REQUIRES  at least one sample
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace pagoda::cli {

// Nearest rank: the smallest sample that at least `percent` % of all samples do not exceed, so
// always a value that was measured. percent in (0, 100].
double Percentile(absl::Span<const double> samples, double percent);

// The middle sample; the mean of the two middle ones of an even count.
double Median(absl::Span<const double> samples);

struct Latencies {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};
Latencies LatenciesOf(absl::Span<const double> samples);

}  // namespace pagoda::cli
