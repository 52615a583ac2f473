// Conversations as models were trained to see them. ChatML
// ("<|im_start|>role\ncontent<|im_end|>\n") when the vocabulary has its two tokens; otherwise the
// contents one after another.
//
// Model files bring their format as a Jinja template. Only one thing is taken from it: the system
// message that ChatML templates put in front when the conversation has none.
//
// Encode() never takes tokens from a content: a user who writes "<|im_end|>" does not end the turn.
//
// Threads    any thread          Ownership  the tokenizer must outlive it
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/worker/gguf.h"
#include "client/worker/tokenizer.h"

namespace pagoda {

enum class ChatRole { kSystem, kUser, kAssistant };

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
};

class ChatPrompt {
 public:
  // `chat_template` is the model's Jinja text, empty when it has none.
  ChatPrompt(const Tokenizer* tokenizer, absl::string_view chat_template);

  // With the template of `file`.
  static ChatPrompt ForModel(const GgufFile& file, const Tokenizer* tokenizer);

  bool is_chatml() const { return start_.has_value() && end_.has_value(); }
  const std::string& default_system_message() const { return default_system_message_; }

  // The ids a model is given. With `ask_for_reply` they end where the assistant begins to speak.
  std::vector<uint32_t> Encode(absl::Span<const ChatMessage> messages, bool ask_for_reply) const;

  // The same as text: for logs and eyes.
  std::string Format(absl::Span<const ChatMessage> messages, bool ask_for_reply) const;

 private:
  // The messages, with the default system message in front where the template puts it.
  std::vector<ChatMessage> Complete(absl::Span<const ChatMessage> messages) const;

  const Tokenizer* tokenizer_;
  std::optional<uint32_t> start_;  // <|im_start|>
  std::optional<uint32_t> end_;    // <|im_end|>
  std::string default_system_message_;
};

}  // namespace pagoda
