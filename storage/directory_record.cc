#include "storage/directory_record.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/crc32c.h"

namespace pagoda {
namespace {

constexpr size_t kCrcOffset = DirectoryRecord::kEncodedBytes - sizeof(uint32_t);

// No page reaches it, and sums of any number of pages stay within 63 bits.
constexpr int64_t kPageBytesMax = int64_t{1} << 38;

uint32_t RecordCrc(const RecordKey& key, ByteSpan body) {
  return Crc32c(body.subspan(0, kCrcOffset), Crc32c(AsBytes(key.Encode())));
}

}  // namespace

ContentHashHead HeadOf(const ContentHash& hash) {
  ContentHashHead head;
  std::copy_n(hash.bytes.begin(), head.size(), head.begin());
  return head;
}

DirectoryRecord DirectoryRecordOf(const PageHeader& header) {
  DirectoryRecord r;
  r.record = header.record;
  r.identity = header.identity;
  r.parent = header.parent;
  r.parent_is_root = header.parent_is_root;
  r.scope = header.scope;
  r.scope_kind = header.scope_kind;
  r.precision = PrecisionOf(header.planes);
  r.fidelity = header.fidelity;
  r.recipe = header.recipe;
  r.planes = PlaneMaskOf(header.planes);
  r.page_tokens = header.page_tokens;
  r.base_position = header.base_position;
  r.layer_count = header.layer_count;
  r.segment_count = static_cast<uint16_t>(header.segments.size());
  r.bytes = header.stored_bytes();
  r.backend_tag = header.backend_tag;
  r.pusher = header.pusher;
  r.content_hash = HeadOf(header.content_hash);
  r.created_unix_seconds = header.created_unix_seconds;
  r.header_bytes = static_cast<uint32_t>(header.header_bytes());
  return r;
}

std::string EncodeDirectoryRecord(const DirectoryRecord& r) {
  ByteWriter out;
  out.Put(kDirectoryRecordVersion);
  out.Put(r.scope_kind);
  out.Put(static_cast<uint8_t>(r.parent_is_root));
  out.Put(r.planes);
  out.Put(r.identity.bytes);
  out.Put(r.parent.bytes);
  out.Put(r.scope.bytes);
  out.Put(r.pusher.bytes);
  out.Put(r.content_hash);
  out.Put(r.backend_tag);
  out.Put(r.bytes);
  out.Put(r.base_position);
  out.Put(r.created_unix_seconds);
  out.Put(r.page_tokens);
  out.Put(r.layer_count);
  out.Put(r.segment_count);
  out.Put(r.recipe);
  out.Put(r.precision);
  out.Put(r.fidelity);
  out.Put(r.header_bytes);
  out.Put(r.extent.file);
  out.Put(static_cast<uint32_t>(r.extent.offset / kExtentAlignBytes));
  PAGODA_CHECK(out.size() == kCrcOffset);
  out.Put(RecordCrc(r.record, AsBytes(out.text() + std::string(4, '\0'))));
  PAGODA_CHECK(out.size() == DirectoryRecord::kEncodedBytes);
  return out.Take();
}

absl::StatusOr<DirectoryRecord> DecodeDirectoryRecord(const RecordKey& key, ByteSpan bytes) {
  if (bytes.size() < sizeof(uint16_t)) {
    return absl::DataLossError(absl::StrFormat("directory record of %d bytes", bytes.size()));
  }
  ByteReader in(bytes);
  const auto version = in.Get<uint16_t>();
  // The checksum is judged first where the length fits: a flipped version bit is damage.
  const bool length_fits = bytes.size() == DirectoryRecord::kEncodedBytes;
  uint32_t crc = 0;
  if (length_fits) std::memcpy(&crc, bytes.data() + kCrcOffset, sizeof(crc));
  const bool crc_fits = length_fits && crc == RecordCrc(key, bytes);
  if (version != kDirectoryRecordVersion && (crc_fits || !length_fits)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "directory record: version %d, this build reads %d", version, kDirectoryRecordVersion));
  }
  if (!crc_fits) {
    return absl::DataLossError(
        absl::StrFormat("directory record: length %d or checksum", bytes.size()));
  }
  DirectoryRecord r;
  r.record = key;
  r.scope_kind = in.Get<ScopeKind>();
  r.parent_is_root = in.Get<uint8_t>() != 0;
  r.planes = in.Get<PlaneMask>();
  r.identity.bytes = in.Get<std::array<uint8_t, 32>>();
  r.parent.bytes = in.Get<std::array<uint8_t, 32>>();
  r.scope.bytes = in.Get<std::array<uint8_t, 16>>();
  r.pusher.bytes = in.Get<std::array<uint8_t, 16>>();
  r.content_hash = in.Get<ContentHashHead>();
  r.backend_tag = in.Get<uint64_t>();
  r.bytes = in.Get<int64_t>();
  r.base_position = in.Get<uint64_t>();
  r.created_unix_seconds = in.Get<uint64_t>();
  r.page_tokens = in.Get<uint32_t>();
  r.layer_count = in.Get<uint16_t>();
  r.segment_count = in.Get<uint16_t>();
  r.recipe = in.Get<CodeRecipe>();
  r.precision = in.Get<Precision>();
  r.fidelity = in.Get<Precision>();
  r.header_bytes = in.Get<uint32_t>();
  r.extent.file = in.Get<uint32_t>();
  r.extent.offset = int64_t{in.Get<uint32_t>()} * kExtentAlignBytes;
  r.extent.bytes = r.extent.file == 0 ? 0 : r.bytes;
  const auto kind = static_cast<uint8_t>(r.scope_kind);
  const bool fields_ok =
      kind >= 1 && kind <= 3 && r.header_bytes > 0 && r.bytes >= r.header_bytes &&
      IsKnownPrecision(static_cast<uint8_t>(r.fidelity)) &&
      (r.precision == Precision::kNone || IsKnownPrecision(static_cast<uint8_t>(r.precision)));
  if (in.failed() || !fields_ok) {
    return absl::DataLossError("directory record: a field is out of its range");
  }
  if (r.bytes > kPageBytesMax) return absl::DataLossError("directory record: too many bytes");
  return r;
}

}  // namespace pagoda
