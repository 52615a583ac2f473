#include "client/worker/byte_alphabet.h"

namespace pagoda {
namespace {

// Bytes that stand for themselves: the printable ones of Latin-1.
bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  int next = 0x100;  // the others get the code points from here on, in order
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = IsPrintable(byte) ? byte : next++;
    byte_of_[code_point] = static_cast<int16_t>(byte);
    if (code_point < 0x80) {
      chars_[byte] = std::string(1, static_cast<char>(code_point));
    } else {
      chars_[byte] = {static_cast<char>(0xc0 | code_point >> 6),
                      static_cast<char>(0x80 | (code_point & 0x3f))};
    }
  }
}

bool ByteAlphabet::ToBytes(absl::string_view text, std::string* bytes) const {
  bytes->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    int code_point = static_cast<uint8_t>(text[i]);
    if (code_point >= 0x80) {
      if ((code_point & 0xe0) != 0xc0 || i + 1 == text.size()) return false;
      const int tail = static_cast<uint8_t>(text[++i]);
      if ((tail & 0xc0) != 0x80) return false;
      code_point = (code_point & 0x1f) << 6 | (tail & 0x3f);
    }
    if (code_point >= kCodePointEnd || byte_of_[code_point] < 0) return false;
    bytes->push_back(static_cast<char>(byte_of_[code_point]));
  }
  return true;
}

}  // namespace pagoda
