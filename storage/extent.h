// Where a page's bytes lie on SSD: one contiguous run in one extent file.
#pragma once

#include <compare>
#include <cstdint>

namespace pagoda {

constexpr int64_t kExtentAlignBytes = 4096;  // of offsets and lengths; what direct I/O wants

struct Extent {
  uint32_t file = 0;   // number of the extent file; 0: no extent
  int64_t offset = 0;  // multiples of kExtentAlignBytes, like bytes
  int64_t bytes = 0;
  int64_t end() const { return offset + bytes; }
  auto operator<=>(const Extent&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Extent& e) {
    return H::combine(std::move(h), e.file, e.offset, e.bytes);
  }
};

}  // namespace pagoda
