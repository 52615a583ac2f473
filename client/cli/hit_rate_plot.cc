#include "client/cli/hit_rate_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/svg.h"
#include "client/cli/units.h"

namespace pagoda::cli {
namespace {

// Pixels.
constexpr int kWidth = 860;
constexpr int kPanelHeight = 420;
constexpr int kLeft = 70;
constexpr int kRight = 640;
constexpr int kTop = 50;
constexpr int kBottom = 360;
constexpr int kLegendLine = 20;

constexpr const char* kDashes[] = {"", "7 4", "2 4", "10 3 2 3"};

struct Axes {
  int exponent_min = 0;  // powers of two of the bytes
  int exponent_max = 1;
  double rate_max = 0.1;

  double X(double bytes) const {
    const double at = (std::log2(bytes) - exponent_min) / (exponent_max - exponent_min);
    return kLeft + at * (kRight - kLeft);
  }
  double Y(double rate) const { return kBottom - rate / rate_max * (kBottom - kTop); }
};

Axes AxesOf(const PlotPanel& panel) {
  double bytes_min = HUGE_VAL;
  double bytes_max = 0;
  double rate_max = 0;
  for (const PlotLine& line : panel.lines) {
    for (const PlotPoint& point : line.points) {
      bytes_min = std::min(bytes_min, point.bytes);
      bytes_max = std::max(bytes_max, point.bytes);
      rate_max = std::max(rate_max, point.hit_rate);
    }
  }
  Axes axes;
  if (bytes_max == 0) return axes;
  axes.exponent_min = static_cast<int>(std::floor(std::log2(bytes_min)));
  axes.exponent_max =
      std::max(axes.exponent_min + 1, static_cast<int>(std::ceil(std::log2(bytes_max))));
  axes.rate_max = std::max(0.1, std::ceil(rate_max * 10) / 10);
  return axes;
}

void AddGrid(std::string& svg, const Axes& axes) {
  constexpr const char* kGrid = "stroke=\"#dddddd\"";
  const int steps = static_cast<int>(std::lround(axes.rate_max * 10));
  for (int i = 0; i <= steps; ++i) {
    const double y = axes.Y(i / 10.0);
    AddSvgStroke(svg, kLeft, y, kRight, y, kGrid);
    AddSvgText(svg, kLeft - 8, y + 4, "end", absl::StrFormat("%d %%", 10 * i));
  }
  const int stride = std::max(1, (axes.exponent_max - axes.exponent_min + 7) / 8);
  for (int e = axes.exponent_min; e <= axes.exponent_max; e += stride) {
    const double x = axes.X(std::exp2(e));
    AddSvgStroke(svg, x, kTop, x, kBottom, kGrid);
    AddSvgText(svg, x, kBottom + 18, "middle", FormatBytes(std::exp2(e)));
  }
  AddSvgText(svg, (kLeft + kRight) / 2.0, kBottom + 40, "middle", "bytes of the cache");
}

void AddLine(std::string& svg, const PlotLine& line, const Axes& axes, int row) {
  const char* const colour = kSvgColours[static_cast<size_t>(line.colour) % std::size(kSvgColours)];
  const char* const dash = kDashes[static_cast<size_t>(line.dash) % std::size(kDashes)];
  const std::string style =
      absl::StrFormat("stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\"", colour, dash);
  std::vector<PlotPoint> points = line.points;
  std::sort(points.begin(), points.end(),
            [](const PlotPoint& a, const PlotPoint& b) { return a.bytes < b.bytes; });
  std::string path;
  for (const PlotPoint& point : points) {
    absl::StrAppendFormat(&path, "%.1f,%.1f ", axes.X(point.bytes), axes.Y(point.hit_rate));
    absl::StrAppendFormat(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                          axes.X(point.bytes), axes.Y(point.hit_rate), colour);
  }
  absl::StrAppendFormat(&svg, "<polyline points=\"%s\" fill=\"none\" %s/>\n", path, style);
  const double y = kTop + 10 + row * kLegendLine;
  AddSvgStroke(svg, kRight + 20, y - 4, kRight + 52, y - 4, style.c_str());
  AddSvgText(svg, kRight + 60, y, "start", line.label);
}

}  // namespace

std::string HitRatePlot(absl::Span<const PlotPanel> panels) {
  std::vector<int> heights;
  int height = 0;
  for (const PlotPanel& panel : panels) {
    const int legend = kTop + 30 + static_cast<int>(panel.lines.size()) * kLegendLine;
    heights.push_back(std::max(kPanelHeight, legend));
    height += heights.back();
  }
  std::string svg;
  int top = 0;
  for (size_t i = 0; i < panels.size(); ++i) {
    const Axes axes = AxesOf(panels[i]);
    absl::StrAppendFormat(&svg, "<g transform=\"translate(0 %d)\">\n", top);
    AddSvgText(svg, kLeft, kTop - 20, "start",
               absl::StrCat(panels[i].title, ": input tokens that are hits"));
    AddGrid(svg, axes);
    int row = 0;
    for (const PlotLine& line : panels[i].lines) AddLine(svg, line, axes, row++);
    svg += "</g>\n";
    top += heights[i];
  }
  return SvgDocument(kWidth, height, svg);
}

}  // namespace pagoda::cli
