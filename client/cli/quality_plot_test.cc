// Goal: points stand where their figures say, series are joined, odd input draws a picture too.
// Method: small plots; coordinates read back from the SVG.
#include "client/cli/quality_plot.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace pagoda::cli {
namespace {

struct Circle {
  double x = 0;
  double y = 0;
};
std::vector<Circle> Circles(const std::string& svg) {
  std::vector<Circle> circles;
  for (const absl::string_view line : absl::StrSplit(svg, '\n')) {
    Circle circle;
    if (std::sscanf(std::string(line).c_str(), "<circle cx=\"%lf\" cy=\"%lf\"", &circle.x,
                    &circle.y) == 2) {
      circles.push_back(circle);
    }
  }
  return circles;
}

TEST(QualityPlot, FewerBytesAreLeftAndLessKlIsLow) {
  const std::string svg = QualityPlot({{"raw16", "", 23040, 0},
                                       {"q8", "", 12800, 5e-5},
                                       {"q4", "", 6900, 2e-3},
                                       {"q4 w512", "q4", 8800, 1e-3},
                                       {"q4 w0", "q4", 6500, 4e-3}});
  const std::vector<Circle> circles = Circles(svg);
  ASSERT_EQ(circles.size(), 3u);
  EXPECT_GT(circles[0].x, circles[1].x);
  EXPECT_GT(circles[1].x, circles[2].x);
  EXPECT_GT(circles[0].y, circles[1].y);  // raw16 on the lower edge
  EXPECT_GT(circles[1].y, circles[2].y);
  // Joined from few bytes to many.
  EXPECT_TRUE(absl::StrContains(svg, "<polyline"));
  EXPECT_LT(svg.find(">w0<"), svg.find(">w512<"));
  EXPECT_TRUE(absl::StrContains(svg, "3  q4: 6.7 KiB, KL 2.000e-3")) << svg;
}

TEST(QualityPlot, OddInputDrawsToo) {
  EXPECT_TRUE(absl::StartsWith(QualityPlot({}), "<svg"));
  const std::string svg = QualityPlot({{"a<b", "", 100, 0}});
  EXPECT_TRUE(absl::StrContains(svg, "a&lt;b"));
  EXPECT_FALSE(absl::StrContains(svg, "nan"));
  EXPECT_FALSE(absl::StrContains(svg, "inf"));
}

TEST(QualityPlot, PageHoldsPlotAndTable) {
  const std::string page = QualityPage({{"q4", "", 100, 1e-3}}, "1 < 2 & 3\n");
  EXPECT_TRUE(absl::StartsWith(page, "<!doctype html>"));
  EXPECT_TRUE(absl::StrContains(page, "<svg"));
  EXPECT_TRUE(absl::StrContains(page, "1 &lt; 2 &amp; 3"));
}

}  // namespace
}  // namespace pagoda::cli
