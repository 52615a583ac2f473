#include "client/worker/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

// Unicode's White_Space. PCRE2's own \s has U+180E too, which the tokenizers' \s has not.
constexpr absl::string_view kSpace =
    "\\t-\\r "
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";

// Without carriage return and line feed.
constexpr absl::string_view kSpaceInLine =
    "\\t\\x{0B}\\f "
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";

// Assigned by Unicode 15 and 16: Debian 12's PCRE2 10.42 knows Unicode 14. Naming them twice does
// no harm where PCRE2 is newer.
constexpr absl::string_view kNewLetters =
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"
    "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
    "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}"
    "\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}"
    "\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}"
    "\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}";

constexpr absl::string_view kNewNumbers =
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}";

// Numbers of Unicode 17, which the digit splitter of Hugging Face (Rust) knows and its patterns do
// not.
constexpr absl::string_view kNewestNumbers = "\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}";

// The members of a character class, to stand between [ and ].
std::string Letters() { return absl::StrCat("\\p{L}", kNewLetters); }
std::string Numbers() { return absl::StrCat("\\p{N}", kNewNumbers); }

std::string Gpt2Pattern() {
  return absl::StrCat("'s|'t|'re|'ve|'m|'ll|'d| ?[", Letters(), "]+| ?[", Numbers(), "]+| ?[^",
                      kSpace, Letters(), Numbers(), "]+|[", kSpace, "]+(?![^", kSpace, "])|[",
                      kSpace, "]+");
}

// Where Llama 3 says \s*[\r\n]+, this says the same without going back: runs of spaces
// have any length, and the possessive form takes no memory for them.
std::string Llama3Pattern() {
  const std::string line_ends = absl::StrCat("(?:[", kSpaceInLine, "]*+[\\r\\n]++)++");
  return absl::StrCat("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n", Letters(), Numbers(), "]?[",
                      Letters(), "]+|[", Numbers(), "]{1,3}| ?[^", kSpace, Letters(), Numbers(),
                      "]+[\\r\\n]*|", line_ends, "|[", kSpace, "]+(?![^", kSpace, "])|[", kSpace,
                      "]+");
}

}  // namespace

struct PreTokenizer::Regex {
  pcre2_code* code = nullptr;
  ~Regex() { pcre2_code_free(code); }
};

absl::StatusOr<std::shared_ptr<const PreTokenizer::Regex>> PreTokenizer::Compile(
    const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  auto regex = std::make_shared<Regex>();
  regex->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &error_offset, nullptr);
  if (regex->code == nullptr) {
    return absl::InternalError(absl::StrFormat(
        "tokenizer pattern: PCRE2 error %d at offset %d of %s", error, error_offset, pattern));
  }
  // Without executable memory this fails, and pcre2_match interprets: slower, the same words.
  pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
  return regex;
}

absl::StatusOr<PreTokenizer> PreTokenizer::Create(absl::string_view name) {
  PreTokenizer result;
  if (name == "smollm") {
    PAGODA_ASSIGN_OR_RETURN(result.digits_,
                            Compile(absl::StrCat("[", Numbers(), kNewestNumbers, "]")));
    PAGODA_ASSIGN_OR_RETURN(result.words_, Compile(Gpt2Pattern()));
    return result;
  }
  if (name == "gpt-2" || name == "default") {
    PAGODA_ASSIGN_OR_RETURN(result.words_, Compile(Gpt2Pattern()));
    return result;
  }
  if (name == "llama-bpe") {
    PAGODA_ASSIGN_OR_RETURN(result.words_, Compile(Llama3Pattern()));
    result.whole_words_first_ = true;
    return result;
  }
  return absl::UnimplementedError(absl::StrFormat(
      "tokenizer: pre-tokenizer \"%s\"; this worker has smollm, gpt-2, default and llama-bpe",
      name));
}

void PreTokenizer::Split(const Regex& regex, absl::string_view text,
                         absl::FunctionRef<void(absl::string_view, bool is_match)> visit) {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* limits = pcre2_match_context_create(nullptr);
  PAGODA_CHECK(match != nullptr);
  PAGODA_CHECK(limits != nullptr);
  // The limit guards against patterns that take exponential time. Ours take linear time, one step
  // per line end at most, and texts of more than ten million line ends (the default) exist.
  pcre2_set_match_limit(limits, std::numeric_limits<uint32_t>::max());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t offset = 0;
  while (offset < text.size()) {
    // The caller guarantees valid UTF-8; checking it again at every match would be quadratic.
    const int count =
        pcre2_match(regex.code, subject, text.size(), offset, PCRE2_NO_UTF_CHECK, match, limits);
    if (count == PCRE2_ERROR_NOMATCH) break;
    // No pattern needs more stack for a longer text, so nothing is left to fail.
    PAGODA_CHECK(count > 0);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
    if (range[0] > offset) visit(text.substr(offset, range[0] - offset), false);
    visit(text.substr(range[0], range[1] - range[0]), true);
    offset = range[1];
  }
  if (offset < text.size()) visit(text.substr(offset), false);
  pcre2_match_context_free(limits);
  pcre2_match_data_free(match);
}

void PreTokenizer::ForEachWord(absl::string_view text,
                               absl::FunctionRef<void(absl::string_view)> visit) const {
  const auto visit_words = [&](absl::string_view part) {
    Split(*words_, part, [&](absl::string_view word, bool) { visit(word); });
  };
  if (digits_ == nullptr) return visit_words(text);
  Split(*digits_, text, [&](absl::string_view part, bool is_digit) {
    if (is_digit) {
      visit(part);
    } else {
      visit_words(part);
    }
  });
}

}  // namespace pagoda
