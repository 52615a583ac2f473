#include "client/cli/quality_plot.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/svg.h"
#include "client/cli/units.h"

namespace pagoda::cli {
namespace {

// Pixels.
constexpr int kWidth = 900;
constexpr int kHeight = 480;
constexpr int kLeft = 70;
constexpr int kRight = 600;
constexpr int kTop = 40;
constexpr int kBottom = 410;
constexpr int kLegendLine = 20;

struct Axes {
  double bytes_min = 1;
  double bytes_max = 2;
  int decade_min = -6;  // of the KL
  int decade_max = 0;

  double X(double bytes) const {
    return kLeft + std::log(bytes / bytes_min) / std::log(bytes_max / bytes_min) * (kRight - kLeft);
  }
  double Y(double kl) const {
    if (kl <= 0) return kBottom;
    const double at = (std::log10(kl) - decade_min) / (decade_max - decade_min);
    return kBottom - std::clamp(at, 0.0, 1.0) * (kBottom - kTop);
  }
};

Axes AxesOf(absl::Span<const QualityPoint> points) {
  Axes axes;
  double kl_min = HUGE_VAL;
  double kl_max = 0;
  axes.bytes_min = HUGE_VAL;
  axes.bytes_max = 0;
  for (const QualityPoint& point : points) {
    axes.bytes_min = std::min(axes.bytes_min, point.bytes_per_token / 1.15);
    axes.bytes_max = std::max(axes.bytes_max, point.bytes_per_token * 1.15);
    if (point.kl > 0) kl_min = std::min(kl_min, point.kl);
    kl_max = std::max(kl_max, point.kl);
  }
  if (axes.bytes_max <= 0) return Axes();
  if (kl_max > 0) {
    axes.decade_min = static_cast<int>(std::floor(std::log10(kl_min)));
    axes.decade_max =
        std::max(axes.decade_min + 1, static_cast<int>(std::ceil(std::log10(kl_max))));
  }
  return axes;
}

void AddGrid(std::string& svg, const Axes& axes) {
  constexpr const char* kGrid = "stroke=\"#dddddd\"";
  for (int decade = axes.decade_min; decade <= axes.decade_max; ++decade) {
    const double y = axes.Y(std::pow(10, decade));
    AddSvgStroke(svg, kLeft, y, kRight, y, kGrid);
    AddSvgText(svg, kLeft - 8, y + 4, "end", absl::StrFormat("1e%d", decade));
  }
  constexpr int kSteps = 5;
  for (int step = 0; step <= kSteps; ++step) {
    const double bytes =
        axes.bytes_min * std::pow(axes.bytes_max / axes.bytes_min, double{1} * step / kSteps);
    const double x = axes.X(bytes);
    AddSvgStroke(svg, x, kTop, x, kBottom, kGrid);
    AddSvgText(svg, x, kBottom + 18, "middle", FormatBytes(bytes));
  }
  AddSvgText(svg, (kLeft + kRight) / 2.0, kBottom + 42, "middle",
             "bytes of K and V per token, all overhead counted");
  AddSvgText(svg, kLeft, kTop - 14, "start", "mean KL from raw16, nats: lower is better");
}

const char* Colour(size_t index) { return kSvgColours[index % std::size(kSvgColours)]; }

// A series: its points by bytes, joined, each with its own small label.
void AddSeries(std::string& svg, const Axes& axes, std::vector<QualityPoint> points,
               const char* colour) {
  std::sort(points.begin(), points.end(), [](const QualityPoint& a, const QualityPoint& b) {
    return a.bytes_per_token < b.bytes_per_token;
  });
  std::string path;
  for (const QualityPoint& point : points) {
    const double x = axes.X(point.bytes_per_token);
    const double y = axes.Y(point.kl);
    absl::StrAppendFormat(&path, "%.1f,%.1f ", x, y);
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"5\" height=\"5\" fill=\"%s\"/>\n",
                          x - 2.5, y - 2.5, colour);
    // "q4 w512" is labelled w512.
    const size_t space = point.label.rfind(' ');
    AddSvgText(svg, x + 6, y - 6, "start",
               space == std::string::npos ? point.label : point.label.substr(space + 1));
  }
  absl::StrAppendFormat(
      &svg, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-dasharray=\"4 3\"/>\n",
      path, colour);
}

void AddFeature(std::string& svg, const Axes& axes, const QualityPoint& point, int number) {
  const double x = axes.X(point.bytes_per_token);
  const double y = axes.Y(point.kl);
  absl::StrAppendFormat(&svg,
                        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"8\" fill=\"white\" stroke=\"#000000\" "
                        "fill-opacity=\"0.8\"/>\n",
                        x, y);
  AddSvgText(svg, x, y + 4, "middle", absl::StrCat(number));
}

}  // namespace

std::string QualityPlot(absl::Span<const QualityPoint> points) {
  const Axes axes = AxesOf(points);
  std::string svg;
  AddGrid(svg, axes);
  std::map<std::string, std::vector<QualityPoint>> series;
  for (const QualityPoint& point : points) {
    if (!point.series.empty()) series[point.series].push_back(point);
  }
  int line = 0;
  const auto legend_y = [&line] { return kTop + 10 + kLegendLine * line++; };
  size_t colour = 0;
  for (const auto& [name, of_series] : series) {
    AddSeries(svg, axes, of_series, Colour(colour));
    const double y = legend_y();
    AddSvgStroke(svg, kRight + 20, y - 4, kRight + 44, y - 4,
                 absl::StrFormat("stroke=\"%s\" stroke-dasharray=\"4 3\"", Colour(colour)).c_str());
    AddSvgText(svg, kRight + 52, y, "start", absl::StrCat(name, ", window as said"));
    ++colour;
  }
  int number = 0;
  for (const QualityPoint& point : points) {
    if (!point.series.empty()) continue;
    AddFeature(svg, axes, point, ++number);
    AddSvgText(svg, kRight + 20, legend_y(), "start",
               absl::StrFormat("%d  %s: %s, KL %.3fe-3", number, point.label,
                               FormatBytes(point.bytes_per_token), 1000 * point.kl));
  }
  return SvgDocument(kWidth, std::max(kHeight, kTop + kLegendLine * (line + 2)), svg);
}

std::string QualityPage(absl::Span<const QualityPoint> points, const std::string& table) {
  return absl::StrCat(
      "<!doctype html>\n<meta charset=\"utf-8\">\n<title>pagoda eval ablate</title>\n",
      QualityPlot(points), "<pre>\n",
      absl::StrReplaceAll(table, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}}), "</pre>\n");
}

}  // namespace pagoda::cli
