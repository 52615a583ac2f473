// Finds special tokens such as "<|im_end|>" in text: the leftmost, and of those that begin at one
// place the longest.
//
// Threads    any thread once filled
// Limits     tokens of 1 to 256 bytes; others are never found
// Cost       per byte of text one table look-up; at a byte that begins a special token one hash per
//            distinct length of those that begin so
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace pagoda {

class SpecialTokens {
 public:
  static constexpr size_t kTokenBytesMax = 256;

  struct Match {
    size_t offset;  // npos: none
    size_t size;
    uint32_t token;
  };

  void Add(absl::string_view text, uint32_t token);

  // The first special token at or after `offset`.
  Match Find(absl::string_view text, size_t offset) const;

 private:
  absl::flat_hash_map<std::string, uint32_t> tokens_;
  // Distinct lengths of the tokens that begin with a byte, longest first.
  std::array<std::vector<size_t>, 256> sizes_by_first_byte_;
};

}  // namespace pagoda
