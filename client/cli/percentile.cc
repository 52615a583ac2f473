#include "client/cli/percentile.h"

#include <algorithm>
#include <cmath>

#include "storage/base/check.h"

namespace pagoda::cli {
namespace {

double AtRank(const std::vector<double>& sorted, double percent) {
  PAGODA_CHECK(percent > 0);
  PAGODA_CHECK(percent <= 100);
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

std::vector<double> Sorted(absl::Span<const double> samples) {
  PAGODA_CHECK(!samples.empty());
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

double Percentile(absl::Span<const double> samples, double percent) {
  return AtRank(Sorted(samples), percent);
}

double Median(absl::Span<const double> samples) {
  const std::vector<double> sorted = Sorted(samples);
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

Latencies LatenciesOf(absl::Span<const double> samples) {
  const std::vector<double> sorted = Sorted(samples);
  return {AtRank(sorted, 50), AtRank(sorted, 90), AtRank(sorted, 99)};
}

}  // namespace pagoda::cli
