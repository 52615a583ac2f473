// Goal: the document is whole paragraphs and as long as asked, or it is said why not. Method: texts
// whose tokens are words.
#include "client/cli/demo_document.h"

#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_split.h"
#include "client/cli/temp_folder.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

int64_t CountWords(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return static_cast<int64_t>(words.size());
}

TEST(DemoDocumentTest, CutsAtTheFirstParagraphEndThatIsEnough) {
  constexpr char kText[] = "one two\nthree\n\nfour five\n\n\nsix\n";
  EXPECT_EQ(CutAtParagraph(kText, 1, CountWords), "one two\nthree\n");
  EXPECT_EQ(CutAtParagraph(kText, 3, CountWords), "one two\nthree\n");
  EXPECT_EQ(CutAtParagraph(kText, 4, CountWords), "one two\nthree\n\nfour five\n");
  EXPECT_EQ(CutAtParagraph(kText, 6, CountWords), kText);
  EXPECT_EQ(CutAtParagraph(kText, 7, CountWords), "");
}

TEST(DemoDocumentTest, TextsWithoutParagraphs) {
  EXPECT_EQ(CutAtParagraph("", 1, CountWords), "");
  EXPECT_EQ(CutAtParagraph("one two", 2, CountWords), "one two");
  EXPECT_EQ(CutAtParagraph("one two\n\n", 2, CountWords), "one two\n");
  EXPECT_EQ(CutAtParagraph("\n\n\n", 1, CountWords), "");
}

TEST(DemoDocumentTest, TakesTheFirstThatIsLongEnough) {
  absl::StatusOr<TempFolder> folder = TempFolder::Make("demo_document_test_");
  PAGODA_ASSERT_OK(folder);
  PAGODA_ASSERT_OK(folder->WriteFile("short", "one two\n"));
  PAGODA_ASSERT_OK(folder->WriteFile("long", "one two three\n\nfour\n"));
  const std::vector<std::string> paths = {folder->File("none"), folder->File("short"),
                                          folder->File("long")};
  const absl::StatusOr<DemoDocument> document = LoadDemoDocument(paths, 3, CountWords);
  PAGODA_ASSERT_OK(document);
  EXPECT_EQ(document->path, paths[2]);
  EXPECT_EQ(document->text, "one two three\n");
  EXPECT_EQ(document->token_count, 3);
  EXPECT_THAT(LoadDemoDocument(paths, 5, CountWords),
              StatusIs(absl::StatusCode::kNotFound, "--document"));
  EXPECT_THAT(LoadDemoDocument({}, 1, CountWords), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace pagoda::cli
