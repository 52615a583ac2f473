#include "client/cli/svg.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace pagoda::cli {

std::string SvgDocument(int width, int height, const std::string& body) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n%s</svg>\n",
      width, height, width, height, body);
}

void AddSvgText(std::string& svg, double x, double y, const char* anchor, absl::string_view text) {
  absl::StrAppendFormat(
      &svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
      absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}}));
}

void AddSvgStroke(std::string& svg, double x1, double y1, double x2, double y2, const char* style) {
  absl::StrAppendFormat(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1,
                        y1, x2, y2, style);
}

}  // namespace pagoda::cli
