// Goal: repair as Python's bytes.decode("utf-8", "replace") does. Method: Python's answers for
// every kind of fault, and properties over all strings of two bytes.
#include "client/worker/utf8.h"

#include <gtest/gtest.h>

#include <vector>

namespace pagoda {
namespace {

#define R "\xef\xbf\xbd"

TEST(Utf8Test, ValidTextStays) {
  for (const char* text :
       {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(ValidUtf8Prefix(text), absl::string_view(text).size()) << text;
    EXPECT_EQ(ReplaceInvalidUtf8(text), text);
  }
  const std::string nul("a\0b", 3);
  EXPECT_EQ(ReplaceInvalidUtf8(nul), nul);
}

TEST(Utf8Test, ReplacesMaximalSubparts) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"\x80", R},        // a tail alone
      {"\xc0\x80", R R},  // overlong
      {"\xc1\xbf", R R},
      {"\xe0\x9f\xbf", R R R},        // overlong
      {"\xed\xa0\x80", R R R},        // surrogate
      {"\xf0\x8f\xbf\xbf", R R R R},  // overlong
      {"\xf4\x90\x80\x80", R R R R},  // beyond U+10FFFF
      {"\xf5\x80\x80\x80", R R R R},
      {"\xff\xfe", R R},
      {"\xc3", R},  // cut at the end
      {"\xe2\x82", R},
      {"\xf0\x9f\x98", R},
      {"\xe2\x82"
       "a",
       R "a"},  // cut by another character
      {"\xf0\x9f\x98"
       "\xc3\xa9",
       R "\xc3\xa9"},
      {"\xe2\xe2\x82\xac", R "\xe2\x82\xac"},
      {"a\xf1\x80\x80\xe1\x80\xc2"
       "b\x80"
       "c\x80\xbf"
       "d",
       "a" R R R "b" R "c" R R "d"},
  };
  for (const auto& [text, repaired] : cases) EXPECT_EQ(ReplaceInvalidUtf8(text), repaired) << text;
}

TEST(Utf8Test, PrefixEndsBeforeTheFirstFault) {
  EXPECT_EQ(ValidUtf8Prefix("ab\xe2\x82"), 2u);
  EXPECT_EQ(ValidUtf8Prefix("\xe2\x82\xac\xff"), 3u);
  EXPECT_EQ(ValidUtf8Prefix("\x80"), 0u);
}

TEST(Utf8Test, RepairIsValidAndStable) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second), '!'};
      const std::string repaired = ReplaceInvalidUtf8(text);
      ASSERT_EQ(ValidUtf8Prefix(repaired), repaired.size());
      ASSERT_EQ(ReplaceInvalidUtf8(repaired), repaired);
      ASSERT_EQ(repaired.back(), '!');
    }
  }
}

}  // namespace
}  // namespace pagoda
