#include "client/worker/chat_prompt.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

constexpr absl::string_view kStart = "<|im_start|>";
constexpr absl::string_view kEnd = "<|im_end|>";

absl::string_view RoleName(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
  }
  return "user";
}

// The text between "<|im_start|>system\n" and "<|im_end|>" when the template holds it as a literal,
// with the line end as it is or as Jinja's "\n". Empty when there is none.
std::string FindDefaultSystemMessage(absl::string_view chat_template) {
  for (const absl::string_view line_end : {absl::string_view("\n"), absl::string_view("\\n")}) {
    const std::string opening = absl::StrCat(kStart, "system", line_end);
    const size_t begin = chat_template.find(opening);
    if (begin == absl::string_view::npos) continue;
    const absl::string_view rest = chat_template.substr(begin + opening.size());
    const absl::string_view message = rest.substr(0, rest.find(kEnd));
    // A quote or a brace: the literal ends here and an expression follows.
    if (message.size() == rest.size() || message.find_first_of("'\"{}") != message.npos) continue;
    return std::string(message);
  }
  return "";
}

}  // namespace

ChatPrompt::ChatPrompt(const Tokenizer* tokenizer, absl::string_view chat_template)
    : tokenizer_(tokenizer),
      start_(tokenizer->FindToken(kStart)),
      end_(tokenizer->FindToken(kEnd)),
      default_system_message_(FindDefaultSystemMessage(chat_template)) {}

ChatPrompt ChatPrompt::ForModel(const GgufFile& file, const Tokenizer* tokenizer) {
  const absl::StatusOr<absl::string_view> text = file.GetString("tokenizer.chat_template");
  return ChatPrompt(tokenizer, text.ok() ? *text : "");
}

std::vector<ChatMessage> ChatPrompt::Complete(absl::Span<const ChatMessage> messages) const {
  std::vector<ChatMessage> complete;
  if (!messages.empty() && messages.front().role != ChatRole::kSystem &&
      !default_system_message_.empty()) {
    complete.push_back({ChatRole::kSystem, default_system_message_});
  }
  complete.insert(complete.end(), messages.begin(), messages.end());
  return complete;
}

std::vector<uint32_t> ChatPrompt::Encode(absl::Span<const ChatMessage> messages,
                                         bool ask_for_reply) const {
  if (!is_chatml()) return tokenizer_->Encode(Format(messages, ask_for_reply), ParseSpecial::kNo);
  std::vector<uint32_t> tokens;
  const auto append = [&](absl::string_view text) {
    const std::vector<uint32_t> more = tokenizer_->Encode(text, ParseSpecial::kNo);
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  for (const ChatMessage& message : Complete(messages)) {
    tokens.push_back(*start_);
    append(absl::StrCat(RoleName(message.role), "\n", message.content));
    tokens.push_back(*end_);
    append("\n");
  }
  if (ask_for_reply) {
    tokens.push_back(*start_);
    append("assistant\n");
  }
  return tokens;
}

std::string ChatPrompt::Format(absl::Span<const ChatMessage> messages, bool ask_for_reply) const {
  std::string text;
  if (!is_chatml()) {
    for (const ChatMessage& message : messages) absl::StrAppend(&text, message.content);
    return text;
  }
  for (const ChatMessage& message : Complete(messages)) {
    absl::StrAppend(&text, kStart, RoleName(message.role), "\n", message.content, kEnd, "\n");
  }
  if (ask_for_reply) absl::StrAppend(&text, kStart, "assistant\n");
  return text;
}

}  // namespace pagoda
