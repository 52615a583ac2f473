// Goal: what a vocabulary says is what happens, and a contradictory one is refused. Method: a
// byte-level vocabulary with three merges; single keys changed. Equality with the real tokenizer is
// tokenizer_golden_test.cc.
#include "client/worker/tokenizer.h"

#include <thread>

#include "client/worker/special_tokens.h"
#include "client/worker/testing/random_llama.h"
#include "client/worker/utf8.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using ::testing::ElementsAre;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Of AddByteTokenizer: the byte b has the id 3 + b.
constexpr uint32_t kByte = 3;
constexpr uint32_t kHell = 261;

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufWriter& writer) {
  const std::string bytes = writer.Finish();
  const auto file = GgufFile::FromBytes(AsBytes(bytes));
  if (!file.ok()) return file.status();
  return Tokenizer::FromGguf(*file);
}

std::unique_ptr<Tokenizer> ByteTokenizer() {
  GgufWriter writer;
  AddByteTokenizer(300, &writer);
  auto tokenizer = Load(writer);
  PAGODA_EXPECT_OK(tokenizer);
  return *std::move(tokenizer);
}

// A vocabulary by hand; empty lists are left out.
GgufWriter Vocabulary(const std::vector<std::string>& tokens, const std::vector<int32_t>& types,
                      const std::vector<std::string>& merges, const char* pre = "gpt-2") {
  GgufWriter writer;
  writer.SetString("tokenizer.ggml.model", "gpt2");
  writer.SetString("tokenizer.ggml.pre", pre);
  writer.SetStrings("tokenizer.ggml.tokens", tokens);
  writer.SetInts("tokenizer.ggml.token_type", types);
  writer.SetStrings("tokenizer.ggml.merges", merges);
  return writer;
}

TEST(TokenizerTest, MergesInsideWords) {
  const auto tokenizer = ByteTokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 300u);
  EXPECT_EQ(tokenizer->bos(), 1u);
  EXPECT_EQ(tokenizer->eos(), 2u);
  EXPECT_THAT(tokenizer->Encode("hello", ParseSpecial::kNo), ElementsAre(kHell, kByte + 'o'));
  EXPECT_THAT(tokenizer->Encode("hel1l", ParseSpecial::kNo),
              ElementsAre(259, kByte + 'l', kByte + '1', kByte + 'l'));
  EXPECT_TRUE(tokenizer->Encode("", ParseSpecial::kYes).empty());
}

TEST(TokenizerTest, SpecialTokensOnlyOnRequest) {
  const auto tokenizer = ByteTokenizer();
  const std::string text = "<|im_start|><|im_end|>x<|im_end";
  const std::vector<uint32_t> parsed = tokenizer->Encode(text, ParseSpecial::kYes);
  ASSERT_EQ(parsed.size(), 3 + 8u);
  EXPECT_EQ(parsed[0], 1u);
  EXPECT_EQ(parsed[1], 2u);
  const std::vector<uint32_t> plain = tokenizer->Encode(text, ParseSpecial::kNo);
  EXPECT_EQ(plain.size(), text.size());
  for (const auto& tokens : {parsed, plain}) EXPECT_EQ(tokenizer->Decode(tokens), text);
  EXPECT_EQ(tokenizer->FindToken("<|im_end|>"), 2u);
  EXPECT_EQ(tokenizer->FindToken("<|no|>"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_FALSE(tokenizer->IsSpecial(3));
  EXPECT_FALSE(tokenizer->IsSpecial(300));
}

TEST(TokenizerTest, UserDefinedTokensAlways) {
  const auto tokenizer = Load(Vocabulary({"a", "<tool>", "<ctl>", "<", ">"}, {1, 4, 3, 1, 1}, {}));
  PAGODA_ASSERT_OK(tokenizer);
  EXPECT_THAT((*tokenizer)->Encode("a<tool><ctl>", ParseSpecial::kYes), ElementsAre(0, 1, 2));
  // "<ctl>" as plain text: c, t and l have no tokens and vanish.
  EXPECT_THAT((*tokenizer)->Encode("a<tool><ctl>", ParseSpecial::kNo), ElementsAre(0, 1, 3, 4));
}

TEST(TokenizerTest, DecodesBytesAndHoldsBackCutCharacters) {
  const auto tokenizer = ByteTokenizer();
  const std::string text = "\xf0\x9f\x98\x80!";
  const std::vector<uint32_t> tokens = tokenizer->Encode(text, ParseSpecial::kNo);
  ASSERT_EQ(tokens.size(), 5u);
  EXPECT_EQ(tokenizer->TokenBytes(tokens[0]), "\xf0");
  EXPECT_EQ(tokenizer->Decode(tokens), text);
  EXPECT_EQ(tokenizer->Decode(absl::MakeSpan(tokens).subspan(0, 3)), "\xef\xbf\xbd");
  std::string pending;
  std::string shown;
  for (const uint32_t token : tokens) {
    absl::StrAppend(&pending, tokenizer->TokenBytes(token));
    const size_t size = ValidUtf8Prefix(pending);
    shown += pending.substr(0, size);
    pending.erase(0, size);
    EXPECT_TRUE(shown.empty() || shown.size() >= 4);
  }
  EXPECT_EQ(shown, text);
  EXPECT_EQ(tokenizer->TokenBytes(1), "<|im_start|>");
  EXPECT_EQ(tokenizer->TokenBytes(300), "");
  EXPECT_EQ(tokenizer->Decode({999999}), "");
}

TEST(TokenizerTest, EveryByteSurvives) {
  const auto tokenizer = ByteTokenizer();
  std::string text;
  for (int byte = 0; byte < 0x80; ++byte) text += static_cast<char>(byte);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, ParseSpecial::kNo)), text);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("a\xff"
                                                "b",
                                                ParseSpecial::kNo)),
            "a\xef\xbf\xbd"
            "b");
}

TEST(TokenizerTest, LlamaTakesWholeWordsFirst) {
  // "abc" is a token that no merge reaches.
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "abc"};
  const std::vector<int32_t> types(5, 1);
  const auto llama = Load(Vocabulary(tokens, types, {"a b"}, "llama-bpe"));
  const auto gpt2 = Load(Vocabulary(tokens, types, {"a b"}, "gpt-2"));
  PAGODA_ASSERT_OK(llama);
  PAGODA_ASSERT_OK(gpt2);
  EXPECT_THAT((*llama)->Encode("abc", ParseSpecial::kNo), ElementsAre(4));
  EXPECT_THAT((*gpt2)->Encode("abc", ParseSpecial::kNo), ElementsAre(3, 2));
}

TEST(TokenizerTest, RefusesContradictions) {
  EXPECT_THAT(Load(GgufWriter()), StatusIs(kInvalid, "tokenizer.ggml.model is absent"));
  GgufWriter writer;
  writer.SetString("tokenizer.ggml.model", "llama");
  EXPECT_THAT(Load(writer), StatusIs(kUnimplemented, "\"llama\""));
  EXPECT_THAT(Load(Vocabulary({"a"}, {1}, {}, "qwen2")), StatusIs(kUnimplemented, "qwen2"));
  EXPECT_THAT(Load(Vocabulary({}, {}, {})), StatusIs(kInvalid, "0 tokens"));
  EXPECT_THAT(Load(Vocabulary({"a"}, {1, 1}, {})), StatusIs(kInvalid, "2 token types"));
  EXPECT_THAT(Load(Vocabulary({"a"}, {1}, {"a"})), StatusIs(kInvalid, "merge 0 is not a pair"));
  EXPECT_THAT(Load(Vocabulary({"a"}, {1}, {""})), StatusIs(kInvalid, "merge 0 is not a pair"));
  EXPECT_THAT(Load(Vocabulary({"a"}, {1}, {"a a"})), StatusIs(kInvalid, "merge 0 names"));
  writer = Vocabulary({"a"}, {1}, {});
  writer.SetUint32("tokenizer.ggml.eos_token_id", 1);
  EXPECT_THAT(Load(writer), StatusIs(kInvalid, "eos_token_id is 1"));
  writer = {};
  writer.SetString("tokenizer.ggml.model", "gpt2");
  EXPECT_THAT(Load(writer), StatusIs(kInvalid, "tokenizer.ggml.tokens is absent"));
}

TEST(TokenizerTest, ThreadsShareOne) {
  const auto tokenizer = ByteTokenizer();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string text = absl::StrCat("hello number ", i * (t % 2), " hell");
        const auto tokens = tokenizer->Encode(text, ParseSpecial::kNo);
        if (tokenizer->Decode(tokens) != text) ADD_FAILURE() << text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SpecialTokensTest, LeftmostThenLongest) {
  SpecialTokens specials;
  specials.Add("<a>", 1);
  specials.Add("<a><b>", 2);
  specials.Add("a>", 3);
  specials.Add("", 4);                     // ignored
  specials.Add(std::string(257, 'x'), 5);  // too long: ignored
  specials.Add(std::string(256, 'x'), 6);
  EXPECT_EQ(specials.Find("-<a><b>", 0).token, 2u);
  EXPECT_EQ(specials.Find("-<a><c>", 0).token, 1u);
  EXPECT_EQ(specials.Find("-<a><c>", 2).token, 3u);
  EXPECT_EQ(specials.Find("-<a><c>", 3).offset, absl::string_view::npos);
  EXPECT_EQ(specials.Find(std::string(300, 'x'), 0).token, 6u);
  EXPECT_EQ(specials.Find("", 0).offset, absl::string_view::npos);
}

}  // namespace
}  // namespace pagoda
