// Cuts text into words, inside which BPE merges; no token spans two words. Which cut a vocabulary
// was trained with is named by the GGUF key tokenizer.ggml.pre.
//
//   smollm         every digit (any \p{N}) alone, then GPT-2's pattern on what lies between
//   gpt-2, default GPT-2's pattern
//   llama-bpe      Llama 3's pattern
//
// Character classes are those of Unicode 16 on every machine, whichever version the installed PCRE2
// knows: token ids go into page keys, so two machines must cut alike.
//
// Threads    any thread, at the same time
// Errors     UNIMPLEMENTED  another name; INTERNAL  PCRE2 refuses a pattern
// Cost       one linear pass by PCRE2's JIT (by its interpreter where executable memory is
// forbidden)
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda {

class PreTokenizer {
 public:
  static absl::StatusOr<PreTokenizer> Create(absl::string_view name);

  // Calls `visit` with every word in order; together they are `text`. REQUIRES: valid UTF-8.
  void ForEachWord(absl::string_view text, absl::FunctionRef<void(absl::string_view)> visit) const;

  // A word that is a token as a whole is that token, whatever the merges say (Llama 3).
  bool whole_words_first() const { return whole_words_first_; }

 private:
  struct Regex;

  static absl::StatusOr<std::shared_ptr<const Regex>> Compile(const std::string& pattern);
  // Visits the matches of `regex` and the stretches between them.
  static void Split(const Regex& regex, absl::string_view text,
                    absl::FunctionRef<void(absl::string_view, bool is_match)> visit);

  std::shared_ptr<const Regex> digits_;  // null: digits are not split off
  std::shared_ptr<const Regex> words_;
  bool whole_words_first_ = false;
};

}  // namespace pagoda
