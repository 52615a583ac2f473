#include "client/worker/utf8.h"

#include <cstdint>

namespace pagoda {
namespace {

constexpr absl::string_view kReplacement = "\xef\xbf\xbd";

// How a character goes on after its first byte. The second byte's range excludes overlong forms,
// surrogates and values beyond U+10FFFF; the others are 80 to BF.
struct Lead {
  int size;  // bytes of the character, 0: not a first byte
  uint8_t second_min;
  uint8_t second_max;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

// Bytes at the front of `text` that belong together; `valid` tells whether they are a character or
// a maximal invalid part (at least one byte). REQUIRES: !text.empty().
size_t NextPart(absl::string_view text, bool* valid) {
  const Lead lead = LeadOf(static_cast<uint8_t>(text[0]));
  *valid = false;
  if (lead.size == 0) return 1;
  for (int i = 1; i < lead.size; ++i) {
    if (static_cast<size_t>(i) == text.size()) return i;
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xbf;
    if (byte < min || byte > max) return i;
  }
  *valid = true;
  return lead.size;
}

}  // namespace

size_t ValidUtf8Prefix(absl::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    bool valid = false;
    const size_t size = NextPart(text.substr(offset), &valid);
    if (!valid) break;
    offset += size;
  }
  return offset;
}

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  while (!text.empty()) {
    const size_t good = ValidUtf8Prefix(text);
    repaired.append(text.data(), good);
    text.remove_prefix(good);
    if (text.empty()) break;
    bool valid = false;
    text.remove_prefix(NextPart(text, &valid));
    repaired.append(kReplacement.data(), kReplacement.size());
  }
  return repaired;
}

}  // namespace pagoda
