#include "client/worker/special_tokens.h"

#include <algorithm>
#include <functional>

namespace pagoda {

void SpecialTokens::Add(absl::string_view text, uint32_t token) {
  if (text.empty() || text.size() > kTokenBytesMax) return;
  tokens_.insert_or_assign(std::string(text), token);
  std::vector<size_t>& sizes = sizes_by_first_byte_[static_cast<uint8_t>(text[0])];
  const auto place = std::lower_bound(sizes.begin(), sizes.end(), text.size(), std::greater<>());
  if (place == sizes.end() || *place != text.size()) sizes.insert(place, text.size());
}

SpecialTokens::Match SpecialTokens::Find(absl::string_view text, size_t offset) const {
  for (size_t i = offset; i < text.size(); ++i) {
    for (const size_t size : sizes_by_first_byte_[static_cast<uint8_t>(text[i])]) {
      if (size > text.size() - i) continue;
      const auto it = tokens_.find(text.substr(i, size));
      if (it != tokens_.end()) return {i, size, it->second};
    }
  }
  return {absl::string_view::npos, 0, 0};
}

}  // namespace pagoda
