#include "storage/prefetch/gap_histogram.h"

#include <algorithm>
#include <cmath>

namespace pagoda::prefetch {
namespace {

constexpr double kStepsPerOctave = 4;
constexpr double kFirstOctave = -4;  // 2^-4 seconds

absl::Duration EdgeOf(int step) {
  return absl::Seconds(std::exp2(kFirstOctave + step / kStepsPerOctave));
}

}  // namespace

void GapHistogram::Add(absl::Duration gap) {
  const double octave = std::log2(std::max(absl::ToDoubleSeconds(gap), 1e-9));
  const double step = std::floor((octave - kFirstOctave) * kStepsPerOctave);
  ++counts_[static_cast<size_t>(std::clamp(step, 0.0, kSteps - 1.0))];
  if (++count_ < kCountMax) return;
  count_ = 0;
  for (uint16_t& count : counts_) {
    count /= 2;
    count_ += count;
  }
}

int GapHistogram::StepOf(double quantile) const {
  const double wanted = quantile * static_cast<double>(count_);
  int64_t sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    sum += counts_[static_cast<size_t>(step)];
    if (sum > 0 && static_cast<double>(sum) >= wanted) return step;
  }
  return kSteps - 1;
}

absl::Duration GapHistogram::LowerEdge(double quantile) const { return EdgeOf(StepOf(quantile)); }
absl::Duration GapHistogram::UpperEdge(double quantile) const {
  return EdgeOf(StepOf(quantile) + 1);
}

}  // namespace pagoda::prefetch
