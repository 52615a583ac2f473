// Goal: ids equal those of the model's own Hugging Face tokenizer. Method:
// tests/golden/tokenizer.txt, written by make_tokenizer_golden.py: one text of every oddity, 10,000
// random texts, conversations.
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "absl/strings/escaping.h"
#include "client/worker/chat_prompt.h"
#include "client/worker/model_path.h"
#include "client/worker/testing/random_text.h"
#include "client/worker/tokenizer.h"
#include "storage/base/digest.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

class TokenizerGoldenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = ResolveModelPath();
    if (!path.ok()) GTEST_SKIP() << path.status().message();
    auto file = GgufFile::Open(*path);
    PAGODA_ASSERT_OK(file);
    file_ = *std::move(file);
    auto tokenizer = Tokenizer::FromGguf(file_);
    PAGODA_ASSERT_OK(tokenizer);
    tokenizer_ = *std::move(tokenizer);
  }

  // The lines of the golden file that begin with `kind`, without it.
  static std::vector<std::string> Lines(const std::string& kind) {
    std::ifstream golden("tests/golden/tokenizer.txt");
    EXPECT_TRUE(golden) << "run from the repository root";
    std::vector<std::string> lines;
    std::string line;
    while (std::getline(golden, line)) {
      if (line.rfind(kind + " ", 0) == 0) lines.push_back(line.substr(kind.size() + 1));
    }
    EXPECT_FALSE(lines.empty()) << kind;
    return lines;
  }

  static std::vector<uint32_t> Ids(std::istringstream* fields) {
    return {std::istream_iterator<uint32_t>(*fields), std::istream_iterator<uint32_t>()};
  }

  // As `hash` lines have it: over texts [first, first + 100).
  std::string HashOf(uint64_t first, ParseSpecial parse_special) const {
    ByteWriter out;
    for (uint64_t i = first; i < first + 100; ++i) {
      const std::vector<uint32_t> tokens = tokenizer_->Encode(RandomText(i), parse_special);
      out.Put(static_cast<uint32_t>(tokens.size()));
      for (const uint32_t token : tokens) out.Put(token);
    }
    const Sha256Digest digest = Sha256(out.text());
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(digest.data()), 8));
  }

  GgufFile file_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TokenizerGoldenTest, TheTextOfOddities) {
  std::ifstream input("tests/golden/tokenizer_text.txt", std::ios::binary);
  ASSERT_TRUE(input) << "run from the repository root";
  const std::string text((std::istreambuf_iterator<char>(input)), std::istreambuf_iterator<char>());
  for (const std::string& line : Lines("text")) {
    std::istringstream fields(line);
    std::string mode;
    fields >> mode;
    const std::vector<uint32_t> expected = Ids(&fields);
    const std::vector<uint32_t> tokens =
        tokenizer_->Encode(text, mode == "parsed" ? ParseSpecial::kYes : ParseSpecial::kNo);
    for (size_t i = 0; i < std::min(expected.size(), tokens.size()); ++i) {
      ASSERT_EQ(tokens[i], expected[i])
          << mode << ": token " << i << " after \""
          << absl::CHexEscape(
                 tokenizer_->Decode(absl::MakeSpan(tokens).subspan(0, i))
                     .substr(
                         i > 20
                             ? tokenizer_->Decode(absl::MakeSpan(tokens).subspan(0, i - 20)).size()
                             : 0))
          << "\"";
    }
    EXPECT_EQ(tokens.size(), expected.size()) << mode;
  }
}

TEST_F(TokenizerGoldenTest, TenThousandRandomTexts) {
  int hashes = 0;
  for (const std::string& line : Lines("hash")) {
    std::istringstream fields(line);
    uint64_t first = 0;
    std::string parsed, plain;
    fields >> first >> parsed >> plain;
    EXPECT_EQ(HashOf(first, ParseSpecial::kYes), parsed) << "texts from " << first;
    EXPECT_EQ(HashOf(first, ParseSpecial::kNo), plain) << "texts from " << first;
    ++hashes;
  }
  EXPECT_EQ(hashes, 100);
}

TEST_F(TokenizerGoldenTest, ConversationsFollowTheTemplate) {
  const ChatPrompt prompt = ChatPrompt::ForModel(file_, tokenizer_.get());
  const ChatMessage user = {ChatRole::kUser, "What is 12 x 34? It's easy.\n"};
  const std::map<std::string, std::pair<std::vector<ChatMessage>, bool>> chats = {
      {"user", {{user}, true}},
      {"system_user", {{{ChatRole::kSystem, "Be brief."}, user}, true}},
      {"dialogue", {{user, {ChatRole::kAssistant, "408."}, {ChatRole::kUser, ""}}, false}}};
  for (const std::string& line : Lines("chat")) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    ASSERT_TRUE(chats.contains(name)) << name;
    const auto& [messages, ask_for_reply] = chats.at(name);
    const std::vector<uint32_t> expected = Ids(&fields);
    EXPECT_EQ(prompt.Encode(messages, ask_for_reply), expected) << name;
    EXPECT_EQ(tokenizer_->Encode(prompt.Format(messages, ask_for_reply), ParseSpecial::kYes),
              expected)
        << name;
  }
}

}  // namespace
}  // namespace pagoda
