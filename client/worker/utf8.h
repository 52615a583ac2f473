// Repair of text that claims to be UTF-8. Tokenizers and PCRE2 need valid input; users send
// anything.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace pagoda {

// Length of the longest valid prefix, in bytes.
size_t ValidUtf8Prefix(absl::string_view text);

// Replaces every maximal invalid part by U+FFFD, as Python's errors="replace" and the Unicode
// standard (3.9, "substitution of maximal subparts") do: a cut character is one U+FFFD, every other
// stray byte one each. Surrogates and values beyond U+10FFFF are invalid.
std::string ReplaceInvalidUtf8(absl::string_view text);

}  // namespace pagoda
