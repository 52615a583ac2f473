// Random valid texts for comparing tokenizers. tests/golden/random_text.py makes the same ones:
// change both together and write the golden file anew.
#pragma once

#include <cstdint>
#include <string>

namespace pagoda {

// Text number `index`: 1 to 48 pieces, each from one of 16 classes: ASCII, words, Latin, CJK,
// emoji, combining marks, control characters, numbers of many scripts, runs of whitespace,
// contractions, other scripts, any code point, special tokens.
std::string RandomText(uint64_t index);

}  // namespace pagoda
