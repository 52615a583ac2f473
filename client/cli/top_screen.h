// A terminal that is redrawn in place: the alternate screen, without a cursor. On anything that is
// not a terminal frames simply follow one another.
//
// Ownership  while it lives the terminal is changed; the destructor restores it
// Threads    one
#pragma once

#include <cstdio>

#include "absl/strings/string_view.h"

namespace pagoda::cli {

class TopScreen {
 public:
  explicit TopScreen(FILE* stream);
  ~TopScreen();
  TopScreen(const TopScreen&) = delete;
  TopScreen& operator=(const TopScreen&) = delete;

  // Lines beyond the height of the terminal and characters beyond its width are cut off.
  void Draw(absl::string_view frame);

 private:
  FILE* const stream_;
  const bool terminal_;
  bool first_ = true;
};

// The frame cut to rows and columns, for a terminal: each line is cleared to its end.
std::string FitFrame(absl::string_view frame, int rows, int columns);

}  // namespace pagoda::cli
