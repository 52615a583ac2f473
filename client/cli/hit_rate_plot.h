// A picture of hit rates against bytes: SVG, one panel a trace, one line a policy and precision.
//
// Shapes     the bytes' axis is logarithmic, the hit rates' one begins at 0
// Threads    pure function
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace pagoda::cli {

struct PlotPoint {
  double bytes = 0;  // greater than 0
  double hit_rate = 0;
};

struct PlotLine {
  std::string label;
  int colour = 0;                 // lines of one policy have one colour,
  int dash = 0;                   // those of one precision one kind of stroke
  std::vector<PlotPoint> points;  // in any order
};

struct PlotPanel {
  std::string title;
  std::vector<PlotLine> lines;
};

std::string HitRatePlot(absl::Span<const PlotPanel> panels);

}  // namespace pagoda::cli
