#include "client/cli/text_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/check.h"

namespace pagoda::cli {

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

void TextTable::AddRow(std::vector<std::string> cells) {
  PAGODA_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<size_t> TextTable::MinWidths() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) {
    widths.push_back(
        std::max(DisplayWidth(column.title), static_cast<size_t>(std::max(0, column.width_min))));
  }
  return widths;
}

std::string TextTable::Line(absl::Span<const std::string> cells,
                            absl::Span<const size_t> widths) const {
  PAGODA_CHECK(cells.size() == columns_.size());
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += "  ";
    const size_t width = DisplayWidth(cells[i]);
    const std::string padding(width < widths[i] ? widths[i] - width : 0, ' ');
    if (columns_[i].align == Align::kRight) line += padding;
    line += cells[i];
    if (columns_[i].align == Align::kLeft) line += padding;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string TextTable::HeadLines(absl::Span<const size_t> widths) const {
  std::vector<std::string> titles;
  std::vector<std::string> rules;
  for (size_t i = 0; i < columns_.size(); ++i) {
    titles.push_back(columns_[i].title);
    rules.push_back(std::string(widths[i], '-'));
  }
  return Line(titles, widths) + Line(rules, widths);
}

std::string TextTable::Render() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(DisplayWidth(column.title));
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string text = HeadLines(widths);
  for (const std::vector<std::string>& row : rows_) text += Line(row, widths);
  return text;
}

std::string TextTable::Head() const { return HeadLines(MinWidths()); }

std::string TextTable::Row(absl::Span<const std::string> cells) const {
  return Line(cells, MinWidths());
}

size_t DisplayWidth(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // all but continuation bytes
  }));
}

std::string WrapText(absl::string_view text, size_t width, absl::string_view indent) {
  std::string wrapped;
  std::string line;
  size_t line_width = 0;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \n\r\t"), absl::SkipEmpty())) {
    const size_t word_width = DisplayWidth(word);
    if (!line.empty() && line_width + 1 + word_width > width) {
      absl::StrAppend(&wrapped, indent, line, "\n");
      line.clear();
      line_width = 0;
    }
    if (!line.empty()) {
      line += ' ';
      ++line_width;
    }
    absl::StrAppend(&line, word);
    line_width += word_width;
  }
  if (!line.empty()) absl::StrAppend(&wrapped, indent, line, "\n");
  return wrapped;
}

}  // namespace pagoda::cli
