// Text to token ids and back, by the vocabulary of a GGUF file: byte-level BPE (GPT-2's family).
// Ids are those of the model's own Hugging Face tokenizer, which tests/golden proves on 10,000
// texts.
//
// Text that is not UTF-8 is repaired first (utf8.h). Ids are those of the whole text: encoding two
// halves apart may give others at the seam.
//
// Threads    any thread, at the same time          Ownership  keeps nothing of the GgufFile
// Errors     INVALID_ARGUMENT  vocabulary or merges are missing or contradict each other
//            UNIMPLEMENTED     another tokenizer model or pre-tokenizer
// Limits     texts below 682 MiB (checked; callers bound what they accept far lower); 2^22 tokens;
//            special tokens of more than 256 bytes are not recognized in text
// Cost       linear in the text but for single words, O(n log n). Measured on two cores shared with
//            compilers (AMD EPYC): 4 to 13 MB/s of English, 1.4 to 10 MB/s while the word cache is
//            empty; loading a vocabulary of 49,152 tokens 0.05 to 0.12 s
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/worker/bpe.h"
#include "client/worker/gguf.h"
#include "client/worker/pre_tokenizer.h"
#include "client/worker/special_tokens.h"

namespace pagoda {

// Whether "<|im_end|>" in a text is that token or eight characters. kNo for what users write.
enum class ParseSpecial { kNo, kYes };

class Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);

  std::vector<uint32_t> Encode(absl::string_view text, ParseSpecial parse_special) const;

  // The bytes of one token; a character may be spread over several. Empty beyond the vocabulary.
  absl::string_view TokenBytes(uint32_t token) const;
  // All bytes, repaired where ids do not spell UTF-8. For streaming use TokenBytes and
  // ValidUtf8Prefix (utf8.h): hold back what follows the valid prefix.
  std::string Decode(absl::Span<const uint32_t> tokens) const;

  // The token written `text` in the vocabulary: FindToken("<|im_end|>").
  std::optional<uint32_t> FindToken(absl::string_view text) const;
  bool IsSpecial(uint32_t token) const;

  uint32_t vocab_size() const { return static_cast<uint32_t>(token_bytes_.size()); }
  std::optional<uint32_t> bos() const { return bos_; }
  std::optional<uint32_t> eos() const { return eos_; }

 private:
  Tokenizer(PreTokenizer pre_tokenizer, const std::array<uint32_t, 256>& byte_tokens)
      : pre_tokenizer_(std::move(pre_tokenizer)), bpe_(byte_tokens) {}

  absl::Status AddMerges(absl::Span<const absl::string_view> merges);
  void EncodePlain(absl::string_view text, std::vector<uint32_t>* tokens) const;

  // Constant after construction, but for the cache inside bpe_.
  const PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  absl::flat_hash_map<std::string, uint32_t> ids_;          // by the text in the file
  absl::flat_hash_map<std::string, uint32_t> whole_words_;  // by bytes; llama-bpe only
  std::vector<std::string> token_bytes_;
  std::vector<bool> is_special_;
  SpecialTokens always_parsed_;      // user-defined tokens
  SpecialTokens parsed_on_request_;  // those and control tokens
  std::optional<uint32_t> bos_;
  std::optional<uint32_t> eos_;
};

}  // namespace pagoda
