// Goal: a frame fits its terminal and never scrolls it. Method: exact bytes; a file in place of a
// terminal.
#include "client/cli/top_screen.h"

#include <gtest/gtest.h>

namespace pagoda::cli {
namespace {

TEST(TopScreenTest, FramesAreCutToRowsAndColumns) {
  EXPECT_EQ(FitFrame("abc\nde\n", 24, 80),
            "\x1b[H"
            "abc\x1b[K\r\nde\x1b[K\x1b[J");
  EXPECT_EQ(FitFrame("abc\nde\nf\n", 2, 2),
            "\x1b[H"
            "ab\x1b[K\r\nde\x1b[K\x1b[J");
  EXPECT_EQ(FitFrame("", 2, 2), "\x1b[H\x1b[K\x1b[J");
  EXPECT_EQ(FitFrame("caf\xc3\xa9s\n", 1, 4),
            "\x1b[H"
            "caf\xc3\xa9\x1b[K\x1b[J");
}

TEST(TopScreenTest, NotOnATerminalFramesFollowOneAnother) {
  FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    TopScreen screen(file);
    screen.Draw("one\n");
    screen.Draw("two\n");
  }
  std::rewind(file);
  char text[100] = {};
  EXPECT_GT(std::fread(text, 1, sizeof(text) - 1, file), 0u);
  EXPECT_STREQ(text, "one\n\ntwo\n");
  std::fclose(file);
}

}  // namespace
}  // namespace pagoda::cli
