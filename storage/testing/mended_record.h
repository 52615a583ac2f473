// Damaged directory records that pass the checksum, so that fuzzing reaches the rules behind it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "storage/base/crc32c.h"
#include "storage/directory_record.h"

namespace pagoda {

// The same bytes with version, length and checksum put right.
inline std::string MendedRecord(const RecordKey& key, std::string bytes) {
  bytes.resize(DirectoryRecord::kEncodedBytes);
  std::memcpy(bytes.data(), &kDirectoryRecordVersion, sizeof(kDirectoryRecordVersion));
  const size_t crc_offset = bytes.size() - sizeof(uint32_t);
  const uint32_t crc = Crc32c(AsBytes(bytes).subspan(0, crc_offset), Crc32c(AsBytes(key.Encode())));
  std::memcpy(bytes.data() + crc_offset, &crc, sizeof(crc));
  return bytes;
}

}  // namespace pagoda
