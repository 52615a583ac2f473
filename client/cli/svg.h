// Pieces of SVG that the plots share: escaped text, strokes, and colours that people tell apart who
// do not see red and green.
//
// Units      pixels
// Threads    pure functions
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace pagoda::cli {

// Okabe and Ito's palette, and two greys.
inline constexpr const char* kSvgColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#e69f00", "#56b4e9", "#000000", "#8c6d31",
                                              "#777777", "#b2a100"};

// `body` as a whole drawing on white.
std::string SvgDocument(int width, int height, const std::string& body);

// `anchor`: start, middle or end. `text` may hold anything.
void AddSvgText(std::string& svg, double x, double y, const char* anchor, absl::string_view text);
// `style`: attributes, as in stroke="#dddddd".
void AddSvgStroke(std::string& svg, double x1, double y1, double x2, double y2, const char* style);

}  // namespace pagoda::cli
