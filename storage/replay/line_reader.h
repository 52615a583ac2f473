// A text line by line, with numbers, for parsers that say where they stopped.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace pagoda::replay {

class LineReader {
 public:
  LineReader(absl::string_view text, absl::string_view name) : rest_(text), name_(name) {}

  // False at the end. The line has no newline, and no carriage return before it.
  bool Next(absl::string_view& line) {
    if (rest_.empty()) return false;
    const size_t end = rest_.find('\n');
    line = rest_.substr(0, end);
    rest_.remove_prefix(end == absl::string_view::npos ? rest_.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    ++number_;
    return true;
  }

  int64_t number() const { return number_; }  // of the last line, from 1

  absl::Status Error(absl::string_view cause_and_remedy) const {
    return ErrorAt(number_, cause_and_remedy);
  }
  absl::Status ErrorAt(int64_t line, absl::string_view cause_and_remedy) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s, line %d: %s", name_, line, cause_and_remedy));
  }

 private:
  absl::string_view rest_;
  const absl::string_view name_;
  int64_t number_ = 0;
};

}  // namespace pagoda::replay
