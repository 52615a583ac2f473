// Goal: words are cut as the training code cut them. Method: cuts written by hand for each pattern,
// and texts far longer than any buffer of the regex engine. Equality with Hugging Face over
// thousands of texts is tokenizer_golden_test.cc.
#include "client/worker/pre_tokenizer.h"

#include <vector>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Words(absl::string_view name, absl::string_view text) {
  const auto pre_tokenizer = PreTokenizer::Create(name);
  PAGODA_EXPECT_OK(pre_tokenizer);
  std::vector<std::string> words;
  pre_tokenizer->ForEachWord(text, [&](absl::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(PreTokenizerTest, Gpt2) {
  for (const char* name : {"gpt-2", "default"}) {
    EXPECT_THAT(Words(name, "Hello  world! it's 2024"),
                ElementsAre("Hello", " ", " world", "!", " it", "'s", " 2024"));
    EXPECT_THAT(Words(name, "we'LL"), ElementsAre("we", "'", "LL"));
    EXPECT_THAT(Words(name, "a \n\n b  "), ElementsAre("a", " \n\n", " b", "  "));
  }
  EXPECT_TRUE(Words("gpt-2", "").empty());
}

TEST(PreTokenizerTest, SmolLmSplitsEveryDigit) {
  EXPECT_THAT(Words("smollm", "in 12x3"), ElementsAre("in", " ", "1", "2", "x", "3"));
  // Arabic-Indic two, Roman numeral four, a half, mathematical one: all are \p{N}.
  EXPECT_THAT(Words("smollm", "\xd9\xa2\xe2\x85\xa3\xc2\xbd\xf0\x9d\x9f\x99"),
              ElementsAre("\xd9\xa2", "\xe2\x85\xa3", "\xc2\xbd", "\xf0\x9d\x9f\x99"));
  // A digit ends what comes before it: both spaces belong together there.
  EXPECT_THAT(Words("smollm", "a  5"), ElementsAre("a", "  ", "5"));
}

TEST(PreTokenizerTest, WhitespaceIsUnicodes) {
  // U+0085 and U+3000 are spaces; U+200B, U+180E and U+001C are not.
  EXPECT_THAT(Words("gpt-2", "a\xc2\x85\xe3\x80\x80"), ElementsAre("a", "\xc2\x85\xe3\x80\x80"));
  EXPECT_THAT(Words("gpt-2", "a \xe2\x80\x8b"), ElementsAre("a", " \xe2\x80\x8b"));
  EXPECT_THAT(Words("gpt-2", "a \xe1\xa0\x8e"), ElementsAre("a", " \xe1\xa0\x8e"));
  EXPECT_THAT(Words("gpt-2", "a \x1c"), ElementsAre("a", " \x1c"));
}

TEST(PreTokenizerTest, KnowsLettersYoungerThanPcre2) {
  // U+31350, a letter since Unicode 15; U+10D40, a digit since Unicode 16.
  EXPECT_THAT(Words("gpt-2", "a\xf0\xb1\x8d\x90"), ElementsAre("a\xf0\xb1\x8d\x90"));
  EXPECT_THAT(Words("gpt-2", "1\xf0\x90\xb5\x80"), ElementsAre("1\xf0\x90\xb5\x80"));
  EXPECT_THAT(Words("smollm", "1\xf0\x90\xb5\x80"), ElementsAre("1", "\xf0\x90\xb5\x80"));
}

TEST(PreTokenizerTest, Llama3) {
  EXPECT_THAT(Words("llama-bpe", "It'S 12345 (ok)\n\n  x"),
              ElementsAre("It", "'S", " ", "123", "45", " (", "ok", ")\n\n", " ", " x"));
  EXPECT_TRUE(PreTokenizer::Create("llama-bpe")->whole_words_first());
  EXPECT_FALSE(PreTokenizer::Create("smollm")->whole_words_first());
}

TEST(PreTokenizerTest, OtherNamesAreNamed) {
  EXPECT_THAT(PreTokenizer::Create("qwen2"),
              StatusIs(absl::StatusCode::kUnimplemented, "\"qwen2\""));
  EXPECT_THAT(PreTokenizer::Create(""), StatusIs(absl::StatusCode::kUnimplemented));
}

TEST(PreTokenizerTest, Llama3LineEnds) {
  EXPECT_THAT(Words("llama-bpe", "a \t\n \r\n  b"), ElementsAre("a", " \t\n \r\n", " ", " b"));
  EXPECT_THAT(Words("llama-bpe", "\n\n"), ElementsAre("\n\n"));
  EXPECT_THAT(Words("llama-bpe", "a   "), ElementsAre("a", "   "));
  EXPECT_THAT(Words("llama-bpe", "a  \xc2\x85\n\xc2\x85"),
              ElementsAre("a", "  \xc2\x85\n", "\xc2\x85"));
}

TEST(PreTokenizerTest, RunsBeyondPcre2sDefaultLimit) {
  // Ten million steps in one match.
  std::string text(11'000'000, ' ');
  EXPECT_THAT(Words("llama-bpe", text), ElementsAre(text));
  text.clear();
  for (int i = 0; i < 10'100'000; ++i) text += " \n";
  EXPECT_THAT(Words("llama-bpe", text), ElementsAre(text));
}

TEST(PreTokenizerTest, RunsOfAnyLengthAreLinear) {
  constexpr size_t kSize = 1 << 18;
  for (const char* name : {"smollm", "llama-bpe"}) {
    for (const char* unit : {" ", "\n", "x", "!", "\xc2\x85", "\xe6\xbc\xa2", "'s", " \n", "5"}) {
      std::string text;
      while (text.size() < kSize) text += unit;
      const auto pre_tokenizer = PreTokenizer::Create(name);
      size_t sum = 0;
      pre_tokenizer->ForEachWord(text, [&](absl::string_view word) { sum += word.size(); });
      EXPECT_EQ(sum, text.size()) << name << " " << unit;
      sum = 0;
      pre_tokenizer->ForEachWord(text + "x", [&](absl::string_view word) { sum += word.size(); });
      EXPECT_EQ(sum, text.size() + 1) << name << " " << unit;
    }
  }
}

}  // namespace
}  // namespace pagoda
