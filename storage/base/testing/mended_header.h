// Damaged page headers that pass the checksum, so that fuzzing reaches the rules behind it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "storage/base/bytes.h"
#include "storage/base/crc32c.h"
#include "storage/base/page_header.h"

namespace pagoda {

// The same bytes with magic, version, length and checksum put right; grown to a whole header.
inline std::string MendedHeader(std::string bytes) {
  constexpr size_t kLengthOffset = 12;
  constexpr size_t kCrcOffset = 380;
  const std::string good = EncodePageHeader(PageHeader{});
  if (bytes.size() < good.size()) bytes.resize(good.size());
  bytes.resize(AlignUp(static_cast<int64_t>(bytes.size()), kSegmentAlignBytes));
  std::memcpy(bytes.data(), good.data(), kLengthOffset);
  const auto size = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data() + kLengthOffset, &size, sizeof(size));
  std::memset(bytes.data() + kCrcOffset, 0, sizeof(uint32_t));
  const uint32_t crc = Crc32c(AsBytes(bytes));
  std::memcpy(bytes.data() + kCrcOffset, &crc, sizeof(crc));
  return bytes;
}

}  // namespace pagoda
