// Goal: the line says what is known and nothing else. Method: exact texts; a plain file as stream.
#include "client/cli/progress_line.h"

#include <gtest/gtest.h>

namespace pagoda::cli {
namespace {

TEST(ProgressLineTest, Texts) {
  EXPECT_EQ(ProgressText("prefill", 3.21, -1), "  prefill   3.2 s");
  EXPECT_EQ(ProgressText("prefill", 3.21, 0.01), "  prefill   3.2 s, 1 %");
  EXPECT_EQ(ProgressText("prefill", 3, 0.25), "  prefill   3.0 s, 25 %, 9 s left");
  EXPECT_EQ(ProgressText("prefill", 3, 1), "  prefill   3.0 s, 100 %, 0 s left");
}

TEST(ProgressLineTest, OneLinePerStepWhereThereIsNoTerminal) {
  FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    ProgressLine line(file, "loading", 5);
    line.set_share(0.5);
  }
  std::rewind(file);
  char text[100] = {};
  EXPECT_GT(std::fread(text, 1, sizeof(text) - 1, file), 0u);
  EXPECT_STREQ(text, "  loading ...\n");
  std::fclose(file);
}

}  // namespace
}  // namespace pagoda::cli
