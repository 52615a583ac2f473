// What a restart needs to know of a page on SSD: one small record per page, so that the directory
// is rebuilt without touching a single page byte. The page's full header lies beside its planes.
//
//   u16 version | fixed fields, little-endian | u32 CRC32C over (record key, version, fields)
//
// The checksum covers the record key under which the record is stored, so that a record that was
// moved to another key is as broken as one with a flipped bit. Drawn in storage/README.md.
//
// Errors  DATA_LOSS            length, checksum or a field out of its range
//         FAILED_PRECONDITION  another version
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/page_header.h"
#include "storage/extent.h"
#include "storage/plane_mask.h"

namespace pagoda {

constexpr uint16_t kDirectoryRecordVersion = 2;  // 1 had no place of the bytes

// The first eight bytes of ContentHash: enough to notice a difference, never a proof of equality.
using ContentHashHead = std::array<uint8_t, 8>;

struct DirectoryRecord {
  RecordKey record;  // key, group, kv-head range
  Identity identity;
  PageKey parent;
  bool parent_is_root = false;
  ScopeId scope;
  ScopeKind scope_kind = ScopeKind::kPrivate;
  Precision precision = Precision::kNone;
  Precision fidelity = Precision::kRaw16;
  CodeRecipe recipe = CodeRecipe::kNone;
  PlaneMask planes = 0;
  uint32_t page_tokens = 0;
  uint64_t base_position = 0;
  uint16_t layer_count = 0;
  uint16_t segment_count = 0;
  int64_t bytes = 0;  // header and segments, padding counted
  uint64_t backend_tag = 0;
  PusherId pusher;
  ContentHashHead content_hash{};
  uint64_t created_unix_seconds = 0;
  uint32_t header_bytes = 0;  // of `bytes`, what the encoded header takes
  Extent extent;              // where the bytes lie; extent.bytes == bytes once it is set

  // Bytes of Encode(); the record key is stored apart, as the key.
  static constexpr size_t kEncodedBytes = 172;
  bool operator==(const DirectoryRecord&) const = default;
};
static_assert(DirectoryRecord::kEncodedBytes <= 200, "restart reads these for every page");

// Without an extent.
DirectoryRecord DirectoryRecordOf(const PageHeader& header);
ContentHashHead HeadOf(const ContentHash& hash);

std::string EncodeDirectoryRecord(const DirectoryRecord& record);
// `key` is the record key under which `bytes` were found.
absl::StatusOr<DirectoryRecord> DecodeDirectoryRecord(const RecordKey& key, ByteSpan bytes);

}  // namespace pagoda
