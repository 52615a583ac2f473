#include "client/worker/tokenizer.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/worker/byte_alphabet.h"
#include "client/worker/utf8.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kTokenCountMax = size_t{1} << 22;
// llama.cpp's token types that are not plain text.
constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;

absl::Status Invalid(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer: ", what));
}

// Empty when the key is absent or, as some converters write, names no token.
absl::StatusOr<std::optional<uint32_t>> ReadTokenId(const GgufFile& file, absl::string_view key,
                                                    size_t token_count) {
  if (!file.Has(key)) return std::nullopt;
  const absl::StatusOr<uint64_t> id = file.GetUint(key);
  if (!id.ok()) return Invalid(id.status().message());
  if (*id >= token_count) {
    return Invalid(absl::StrFormat("%s is %d, but there are %d tokens", key, *id, token_count));
  }
  return static_cast<uint32_t>(*id);
}

absl::StatusOr<std::vector<int32_t>> ReadTypes(const GgufFile& file, size_t token_count) {
  if (!file.Has("tokenizer.ggml.token_type")) return std::vector<int32_t>(token_count, 1);
  absl::StatusOr<std::vector<int32_t>> types = file.GetInts("tokenizer.ggml.token_type");
  if (!types.ok()) return Invalid(types.status().message());
  if (types->size() != token_count) {
    return Invalid(absl::StrFormat("%d token types for %d tokens", types->size(), token_count));
  }
  return types;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  const absl::StatusOr<absl::string_view> model = file.GetString("tokenizer.ggml.model");
  if (!model.ok()) return Invalid(model.status().message());
  if (*model != "gpt2") {
    return absl::UnimplementedError(absl::StrFormat(
        "tokenizer: model \"%s\"; this worker has byte-level BPE (\"gpt2\")", *model));
  }
  const absl::StatusOr<absl::string_view> pre = file.GetString("tokenizer.ggml.pre");
  PAGODA_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                          PreTokenizer::Create(pre.ok() ? *pre : "default"));
  const auto tokens = file.GetStrings("tokenizer.ggml.tokens");
  if (!tokens.ok()) return Invalid(tokens.status().message());
  const auto merges = file.GetStrings("tokenizer.ggml.merges");
  if (!merges.ok()) return Invalid(merges.status().message());
  if (tokens->empty() || tokens->size() > kTokenCountMax) {
    return Invalid(absl::StrFormat("%d tokens, expected 1 to %d", tokens->size(), kTokenCountMax));
  }
  PAGODA_ASSIGN_OR_RETURN(const std::vector<int32_t> types, ReadTypes(file, tokens->size()));

  absl::flat_hash_map<std::string, uint32_t> ids;
  for (size_t i = 0; i < tokens->size(); ++i) {
    ids.insert_or_assign(std::string((*tokens)[i]), static_cast<uint32_t>(i));
  }
  const ByteAlphabet alphabet;
  std::array<uint32_t, 256> byte_tokens;
  for (int byte = 0; byte < 256; ++byte) {
    const auto it = ids.find(alphabet.CharOf(static_cast<uint8_t>(byte)));
    byte_tokens[byte] = it == ids.end() ? Bpe::kNoToken : it->second;
  }

  std::unique_ptr<Tokenizer> result(new Tokenizer(std::move(pre_tokenizer), byte_tokens));
  result->ids_ = std::move(ids);
  for (size_t i = 0; i < tokens->size(); ++i) {
    const auto id = static_cast<uint32_t>(i);
    const bool special = types[i] == kControl || types[i] == kUserDefined;
    std::string bytes;
    // Special tokens stand for their text; a plain one with a foreign character does too.
    if (special || !alphabet.ToBytes((*tokens)[i], &bytes)) bytes = std::string((*tokens)[i]);
    if (special) result->parsed_on_request_.Add(bytes, id);
    if (types[i] == kUserDefined) result->always_parsed_.Add(bytes, id);
    if (result->pre_tokenizer_.whole_words_first() && !special) {
      result->whole_words_.insert_or_assign(bytes, id);
    }
    result->is_special_.push_back(special);
    result->token_bytes_.push_back(std::move(bytes));
  }
  PAGODA_RETURN_IF_ERROR(result->AddMerges(*merges));
  PAGODA_ASSIGN_OR_RETURN(result->bos_,
                          ReadTokenId(file, "tokenizer.ggml.bos_token_id", tokens->size()));
  PAGODA_ASSIGN_OR_RETURN(result->eos_,
                          ReadTokenId(file, "tokenizer.ggml.eos_token_id", tokens->size()));
  return result;
}

absl::Status Tokenizer::AddMerges(absl::Span<const absl::string_view> merges) {
  for (size_t i = 0; i < merges.size(); ++i) {
    // "left right"; a token never contains a space in the byte alphabet.
    const size_t space = merges[i].find(' ', 1);
    if (merges[i].empty() || space == absl::string_view::npos) {
      return Invalid(absl::StrFormat("merge %d is not a pair", i));
    }
    const absl::string_view left = merges[i].substr(0, space);
    const absl::string_view right = merges[i].substr(space + 1);
    const std::optional<uint32_t> left_id = FindToken(left);
    const std::optional<uint32_t> right_id = FindToken(right);
    const std::optional<uint32_t> merged_id = FindToken(absl::StrCat(left, right));
    if (!left_id.has_value() || !right_id.has_value() || !merged_id.has_value()) {
      return Invalid(absl::StrFormat("merge %d names a token that is not in the vocabulary", i));
    }
    bpe_.AddMerge(*left_id, *right_id, *merged_id);
  }
  return absl::OkStatus();
}

void Tokenizer::EncodePlain(absl::string_view text, std::vector<uint32_t>* tokens) const {
  pre_tokenizer_.ForEachWord(text, [&](absl::string_view word) {
    if (pre_tokenizer_.whole_words_first()) {
      const auto it = whole_words_.find(word);
      if (it != whole_words_.end()) {
        tokens->push_back(it->second);
        return;
      }
    }
    bpe_.Encode(word, tokens);
  });
}

std::vector<uint32_t> Tokenizer::Encode(absl::string_view text, ParseSpecial parse_special) const {
  // Repair may treble a text, and words are indexed with 31 bits.
  PAGODA_CHECK(text.size() < (uint64_t{1} << 31) / 3);
  std::string repaired;
  if (ValidUtf8Prefix(text) != text.size()) {
    repaired = ReplaceInvalidUtf8(text);
    text = repaired;
  }
  const SpecialTokens& specials =
      parse_special == ParseSpecial::kYes ? parsed_on_request_ : always_parsed_;
  std::vector<uint32_t> tokens;
  size_t offset = 0;
  while (offset < text.size()) {
    const SpecialTokens::Match match = specials.Find(text, offset);
    const bool found = match.offset != absl::string_view::npos;
    const size_t end = found ? match.offset : text.size();
    EncodePlain(text.substr(offset, end - offset), &tokens);
    if (found) tokens.push_back(match.token);
    offset = end + match.size;
  }
  return tokens;
}

absl::string_view Tokenizer::TokenBytes(uint32_t token) const {
  if (token >= token_bytes_.size()) return {};
  return token_bytes_[token];
}

std::string Tokenizer::Decode(absl::Span<const uint32_t> tokens) const {
  std::string bytes;
  for (const uint32_t token : tokens) absl::StrAppend(&bytes, TokenBytes(token));
  return ReplaceInvalidUtf8(bytes);
}

std::optional<uint32_t> Tokenizer::FindToken(absl::string_view text) const {
  const auto it = ids_.find(text);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

bool Tokenizer::IsSpecial(uint32_t token) const {
  return token < is_special_.size() && is_special_[token];
}

}  // namespace pagoda
