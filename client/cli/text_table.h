// Plain text tables: aligned columns, two spaces between them, a line under the titles. Rows can be
// rendered together, or one by one while a long command runs.
//
// Shapes     a row has one cell per column; a cell is one line of UTF-8 (widths count characters)
// Threads    one at a time
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pagoda::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  int width_min = 0;  // of rows printed one by one: wider cells push the rest to the right
};

class TextTable {
 public:
  explicit TextTable(std::vector<Column> columns);

  // All rows at once, columns as wide as their widest cell.
  void AddRow(std::vector<std::string> cells);
  std::string Render() const;
  bool empty() const { return rows_.empty(); }

  // One by one, by title and width_min. Each ends with a newline.
  std::string Head() const;
  std::string Row(absl::Span<const std::string> cells) const;

 private:
  std::vector<size_t> MinWidths() const;
  std::string Line(absl::Span<const std::string> cells, absl::Span<const size_t> widths) const;
  std::string HeadLines(absl::Span<const size_t> widths) const;

  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Characters of a UTF-8 text; every one counts as one cell of the terminal.
size_t DisplayWidth(absl::string_view text);

// `text` in lines of at most `width` characters, broken at spaces, each after `indent`. Newlines in
// the text become spaces; longer words stand alone. Ends with a newline unless empty.
std::string WrapText(absl::string_view text, size_t width, absl::string_view indent);

}  // namespace pagoda::cli
