// A picture of quality against bytes: SVG, mean KL from raw16 over bytes per token, both axes
// logarithmic. Lower left is better. Points of a series are joined by a line; those of none are
// features, numbered, with the numbers explained beside the plot.
//
// Threads    pure functions
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace pagoda::cli {

struct QualityPoint {
  std::string label;
  std::string series;  // empty: a feature of its own
  double bytes_per_token = 0;
  double kl = 0;  // nats; 0 or less stands on the lower edge
};

std::string QualityPlot(absl::Span<const QualityPoint> points);
// The same as a page by itself, with `table` as text below.
std::string QualityPage(absl::Span<const QualityPoint> points, const std::string& table);

}  // namespace pagoda::cli
