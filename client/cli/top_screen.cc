#include "client/cli/top_screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace pagoda::cli {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // alternate screen, no cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kClearLine[] = "\x1b[K";
constexpr char kClearBelow[] = "\x1b[J";

// The first `columns` characters.
absl::string_view Cut(absl::string_view line, int columns) {
  int seen = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
    if (starts && seen++ == columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

TopScreen::TopScreen(FILE* stream) : stream_(stream), terminal_(isatty(fileno(stream)) != 0) {
  if (terminal_) std::fputs(kEnter, stream_);
}

TopScreen::~TopScreen() {
  if (!terminal_) return;
  std::fputs(kLeave, stream_);
  std::fflush(stream_);
}

void TopScreen::Draw(absl::string_view frame) {
  std::string text;
  if (terminal_) {
    winsize size{};
    const bool known = ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
    text = known ? FitFrame(frame, size.ws_row, size.ws_col) : FitFrame(frame, 24, 80);
  } else {
    text = absl::StrCat(first_ ? "" : "\n", frame);
  }
  first_ = false;
  std::fwrite(text.data(), 1, text.size(), stream_);
  std::fflush(stream_);
}

std::string FitFrame(absl::string_view frame, int rows, int columns) {
  std::string text = kHome;
  int row = 0;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(frame, "\n"), '\n')) {
    if (row == rows) break;
    // No newline after the last row: the terminal would scroll.
    absl::StrAppend(&text, row == 0 ? "" : "\r\n", Cut(line, columns), kClearLine);
    ++row;
  }
  return text + kClearBelow;
}

}  // namespace pagoda::cli
