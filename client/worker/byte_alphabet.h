// GPT-2's reversible map from bytes to printable characters, in which byte-level vocabularies and
// merges are written: byte 0x20 is "Ġ" (U+0120), 'a' is 'a'.
//
// Source  GPT-2's bytes_to_unicode()
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace pagoda {

class ByteAlphabet {
 public:
  ByteAlphabet();

  // The character of `byte`, UTF-8 of 1 or 2 bytes.
  absl::string_view CharOf(uint8_t byte) const { return chars_[byte]; }

  // Writes the bytes that `text` stands for; false when a character of it is not in the alphabet
  // (`bytes` is then unspecified).
  bool ToBytes(absl::string_view text, std::string* bytes) const;

 private:
  // All characters are below U+0144.
  static constexpr int kCodePointEnd = 0x144;

  std::array<std::string, 256> chars_;
  std::array<int16_t, kCodePointEnd> byte_of_;  // -1: not in the alphabet
};

}  // namespace pagoda
