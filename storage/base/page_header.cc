#include "storage/base/page_header.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr char kMagic[8] = {'P', 'G', 'D', 'A', 'P', 'A', 'G', 'E'};
constexpr int64_t kFixedBytes = 384;
constexpr size_t kCrcOffset = 380;
constexpr int64_t kPlaneEntryBytes = 32;
constexpr int64_t kSegmentEntryBytes = 64;
constexpr int64_t kHeaderBytesMax = 512 << 10;
constexpr uint32_t kPlanesMax = 64;
constexpr uint32_t kSegmentsMax = 4096;
constexpr uint32_t kTokenIdsMax = 65536;

int64_t TableBytes(int64_t planes, int64_t segments, int64_t token_ids) {
  return kFixedBytes + planes * kPlaneEntryBytes + segments * kSegmentEntryBytes + token_ids * 4;
}

struct Counts {
  uint32_t header_bytes, planes, segments, token_ids;
};

// Writes exactly kFixedBytes; the checksum field is zero.
void PutFixed(ByteWriter& out, const PageHeader& h) {
  out.PutBytes(kMagic, sizeof(kMagic));
  out.Put(kPageVersion);
  out.Put(static_cast<uint16_t>(kFixedBytes));
  out.Put(static_cast<uint32_t>(h.header_bytes()));
  out.Put(h.identity.bytes);
  out.Put(h.record.key.bytes);
  out.Put(h.parent.bytes);
  out.Put(h.scope.bytes);
  out.Put(h.scope_kind);
  out.Put(h.record.group);
  out.Put(h.record.head_begin);
  out.Put(h.record.head_count);
  out.Put(static_cast<uint8_t>(h.parent_is_root));
  out.Put(h.fidelity);
  out.Put(h.page_tokens);
  out.Put(uint32_t{0});
  out.Put(h.base_position);
  out.Put(h.layer_count);
  out.Put(h.head_dim);
  out.Put(h.rotation);
  out.Put(h.rope);
  out.Put(h.recipe);
  out.Put(h.rope_theta);
  out.Put(h.backend_tag);
  out.Put(h.pusher.bytes);
  out.Put(h.content_hash.bytes);
  out.Put(h.chunk_key.bytes);
  out.Put(h.created_unix_seconds);
  out.Put(static_cast<uint32_t>(h.planes.size()));
  out.Put(static_cast<uint32_t>(h.segments.size()));
  out.Put(static_cast<uint32_t>(h.token_ids.size()));
  out.PadTo(kFixedBytes);
}

Counts GetFixed(ByteReader& in, PageHeader& h) {
  Counts counts{};
  in.Skip(sizeof(kMagic) + 2 * sizeof(uint16_t));
  counts.header_bytes = in.Get<uint32_t>();
  h.identity.bytes = in.Get<std::array<uint8_t, 32>>();
  h.record.key.bytes = in.Get<std::array<uint8_t, 32>>();
  h.parent.bytes = in.Get<std::array<uint8_t, 32>>();
  h.scope.bytes = in.Get<std::array<uint8_t, 16>>();
  h.scope_kind = in.Get<ScopeKind>();
  h.record.group = in.Get<uint8_t>();
  h.record.head_begin = in.Get<uint16_t>();
  h.record.head_count = in.Get<uint16_t>();
  h.parent_is_root = in.Get<uint8_t>() != 0;
  h.fidelity = in.Get<Precision>();
  h.page_tokens = in.Get<uint32_t>();
  in.Skip(sizeof(uint32_t));
  h.base_position = in.Get<uint64_t>();
  h.layer_count = in.Get<uint16_t>();
  h.head_dim = in.Get<uint16_t>();
  h.rotation = in.Get<Rotation>();
  h.rope = in.Get<RopeState>();
  h.recipe = in.Get<CodeRecipe>();
  h.rope_theta = in.Get<double>();
  h.backend_tag = in.Get<uint64_t>();
  h.pusher.bytes = in.Get<std::array<uint8_t, 16>>();
  h.content_hash.bytes = in.Get<std::array<uint8_t, 32>>();
  h.chunk_key.bytes = in.Get<std::array<uint8_t, 32>>();
  h.created_unix_seconds = in.Get<uint64_t>();
  counts.planes = in.Get<uint32_t>();
  counts.segments = in.Get<uint32_t>();
  counts.token_ids = in.Get<uint32_t>();
  in.Skip(kFixedBytes - in.offset());
  return counts;
}

void PutTables(ByteWriter& out, const PageHeader& h) {
  for (const PlaneEntry& p : h.planes) {
    const size_t end = out.size() + kPlaneEntryBytes;
    out.Put(p.kind);
    out.Put(p.tensor);
    out.Put(p.bit_begin);
    out.Put(p.bit_count);
    out.Put(p.storage);
    out.Put(uint8_t{0});
    out.Put(p.layer_begin);
    out.Put(p.layer_count);
    out.Put(p.head_begin);
    out.Put(p.head_count);
    out.Put(p.row_begin);
    out.Put(p.row_count);
    out.Put(uint16_t{0});
    out.Put(p.first_segment);
    out.Put(p.segment_count);
    out.PadTo(end);
  }
  for (const SegmentEntry& s : h.segments) {
    const size_t end = out.size() + kSegmentEntryBytes;
    out.Put(s.offset);
    out.Put(s.length);
    out.Put(s.crc32c);
    out.Put(s.layer_begin);
    out.Put(s.layer_count);
    out.Put(s.seal);
    out.PadTo(end);
  }
  out.PutBytes(h.token_ids.data(), h.token_ids.size() * sizeof(uint32_t));
}

void GetTables(ByteReader& in, const Counts& counts, PageHeader& h) {
  for (uint32_t i = 0; i < counts.planes; ++i) {
    const size_t end = in.offset() + kPlaneEntryBytes;
    PlaneEntry p;
    p.kind = in.Get<PlaneKind>();
    p.tensor = in.Get<Tensor>();
    p.bit_begin = in.Get<uint8_t>();
    p.bit_count = in.Get<uint8_t>();
    p.storage = in.Get<PlaneStorage>();
    in.Skip(1);
    p.layer_begin = in.Get<uint16_t>();
    p.layer_count = in.Get<uint16_t>();
    p.head_begin = in.Get<uint16_t>();
    p.head_count = in.Get<uint16_t>();
    p.row_begin = in.Get<uint16_t>();
    p.row_count = in.Get<uint16_t>();
    in.Skip(2);
    p.first_segment = in.Get<uint32_t>();
    p.segment_count = in.Get<uint32_t>();
    in.Skip(end - in.offset());
    h.planes.push_back(p);
  }
  for (uint32_t i = 0; i < counts.segments; ++i) {
    const size_t end = in.offset() + kSegmentEntryBytes;
    SegmentEntry s;
    s.offset = in.Get<uint64_t>();
    s.length = in.Get<uint32_t>();
    s.crc32c = in.Get<uint32_t>();
    s.layer_begin = in.Get<uint16_t>();
    s.layer_count = in.Get<uint16_t>();
    s.seal = in.Get<std::array<uint8_t, 32>>();
    in.Skip(end - in.offset());
    h.segments.push_back(s);
  }
  h.token_ids.resize(counts.token_ids);
  in.GetBytes(h.token_ids.data(), size_t{counts.token_ids} * sizeof(uint32_t));
}

absl::Status CheckPlane(const PageHeader& h, const PlaneEntry& p, uint32_t next_segment) {
  const auto kind = static_cast<uint8_t>(p.kind);
  if (kind == 0 || kind > kPlaneKindMax) {
    return absl::FailedPreconditionError(absl::StrFormat("page: plane kind %d is unknown", kind));
  }
  if (static_cast<uint8_t>(p.storage) > 2 || static_cast<uint8_t>(p.tensor) > 2) {
    return absl::FailedPreconditionError("page: plane storage or tensor is unknown");
  }
  const bool layers_ok =
      p.layer_count > 0 && uint32_t{p.layer_begin} + p.layer_count <= h.layer_count;
  const bool segments_ok =
      p.first_segment == next_segment && p.segment_count <= h.segments.size() - p.first_segment;
  const bool bits_ok = uint32_t{p.bit_begin} + p.bit_count <= 16;
  if (!layers_ok || !segments_ok || !bits_ok) {
    return absl::DataLossError("page: plane table is inconsistent");
  }
  uint32_t layer = p.layer_begin;
  for (uint32_t i = 0; i < p.segment_count; ++i) {
    const SegmentEntry& s = h.segments[p.first_segment + i];
    if (s.layer_begin != layer || s.layer_count == 0) {
      return absl::DataLossError("page: segments of a plane do not follow its layers");
    }
    layer += s.layer_count;
  }
  if (layer != uint32_t{p.layer_begin} + p.layer_count) {
    return absl::DataLossError("page: segments of a plane do not cover its layers");
  }
  return absl::OkStatus();
}

absl::Status CheckHeader(const PageHeader& h, uint32_t header_bytes) {
  if (static_cast<int64_t>(header_bytes) != h.header_bytes()) {
    return absl::DataLossError("page: header length does not fit its tables");
  }
  if (!IsKnownPrecision(static_cast<uint8_t>(h.fidelity))) {
    return absl::FailedPreconditionError("page: fidelity is unknown");
  }
  if (static_cast<uint8_t>(h.rotation) > 1 || static_cast<uint8_t>(h.rope) > 2 ||
      static_cast<uint16_t>(h.recipe) > 1) {
    return absl::FailedPreconditionError("page: frame or code recipe is unknown");
  }
  const auto scope_kind = static_cast<uint8_t>(h.scope_kind);
  if (scope_kind < 1 || scope_kind > 3) return absl::DataLossError("page: scope kind");
  uint32_t next_segment = 0;
  for (const PlaneEntry& p : h.planes) {
    PAGODA_RETURN_IF_ERROR(CheckPlane(h, p, next_segment));
    next_segment += p.segment_count;
  }
  if (next_segment != h.segments.size()) {
    return absl::DataLossError("page: segments that belong to no plane");
  }
  uint64_t offset = header_bytes;
  for (const SegmentEntry& s : h.segments) {
    if (s.offset != offset || s.length == 0) {
      return absl::DataLossError("page: segment offsets do not follow each other");
    }
    offset += static_cast<uint64_t>(s.stored_bytes());
  }
  return absl::OkStatus();
}

}  // namespace

int64_t PageHeader::header_bytes() const {
  return AlignUp(TableBytes(planes.size(), segments.size(), token_ids.size()), kSegmentAlignBytes);
}

int64_t PageHeader::stored_bytes() const {
  int64_t bytes = header_bytes();
  for (const SegmentEntry& s : segments) bytes += s.stored_bytes();
  return bytes;
}

Precision PrecisionOf(const std::vector<PlaneEntry>& planes) {
  // Bits present of K and of V, counted from the top of the 8-bit code.
  int top_bits[2] = {0, 0};
  bool raw[2] = {false, false};
  bool opaque = false;
  for (int tensor = 0; tensor < 2; ++tensor) {
    const Tensor wanted = tensor == 0 ? Tensor::kK : Tensor::kV;
    uint32_t present = 0;
    for (const PlaneEntry& p : planes) {
      if (p.tensor != Tensor::kBoth && p.tensor != wanted) continue;
      if (p.kind == PlaneKind::kRaw16) raw[tensor] = true;
      if (p.kind == PlaneKind::kOpaque) opaque = true;
      if (p.kind == PlaneKind::kCodes && p.bit_begin + p.bit_count <= 8) {
        present |= ((1u << p.bit_count) - 1) << p.bit_begin;
      }
    }
    while (top_bits[tensor] < 8 && (present >> (7 - top_bits[tensor]) & 1) != 0) {
      ++top_bits[tensor];
    }
  }
  if (opaque) return Precision::kOpaque;
  if (raw[0] && raw[1]) return Precision::kRaw16;
  const int bits = std::min(raw[0] ? 8 : top_bits[0], raw[1] ? 8 : top_bits[1]);
  if (bits >= 8) return Precision::kQ8;
  if (bits >= 4) return Precision::kQ4;
  if (bits >= 2) return static_cast<Precision>(bits);
  return Precision::kNone;
}

void AssignOffsets(PageHeader& header) {
  auto offset = static_cast<uint64_t>(header.header_bytes());
  for (SegmentEntry& s : header.segments) {
    s.offset = offset;
    offset += static_cast<uint64_t>(s.stored_bytes());
  }
}

std::string EncodePageHeader(const PageHeader& header) {
  PAGODA_CHECK(header.planes.size() <= kPlanesMax);
  PAGODA_CHECK(header.segments.size() <= kSegmentsMax);
  PAGODA_CHECK(header.token_ids.size() <= kTokenIdsMax);
  PAGODA_CHECK(header.header_bytes() <= kHeaderBytesMax);
  ByteWriter out;
  PutFixed(out, header);
  PAGODA_CHECK(out.size() == kFixedBytes);
  PutTables(out, header);
  out.PadTo(header.header_bytes());
  std::string bytes = out.Take();
  const uint32_t crc = Crc32c(AsBytes(bytes));
  std::memcpy(bytes.data() + kCrcOffset, &crc, sizeof(crc));
  return bytes;
}

absl::StatusOr<PageHeader> DecodePageHeader(ByteSpan bytes) {
  if (bytes.size() < static_cast<size_t>(kFixedBytes)) {
    return absl::DataLossError(absl::StrFormat("page: %d bytes hold no header", bytes.size()));
  }
  if (std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return absl::DataLossError("page: wrong magic");
  }
  uint16_t version;
  std::memcpy(&version, bytes.data() + 8, sizeof(version));
  if (version != kPageVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("page: version %d, this build reads %d", version, kPageVersion));
  }
  ByteReader in(bytes);
  PageHeader header;
  const Counts counts = GetFixed(in, header);
  if (counts.planes > kPlanesMax || counts.segments > kSegmentsMax ||
      counts.token_ids > kTokenIdsMax || counts.header_bytes > kHeaderBytesMax ||
      counts.header_bytes > bytes.size() ||
      counts.header_bytes < TableBytes(counts.planes, counts.segments, counts.token_ids)) {
    return absl::DataLossError("page: header truncated, or counts beyond the limits");
  }
  const ByteSpan whole = bytes.subspan(0, counts.header_bytes);
  uint32_t stored_crc;
  std::memcpy(&stored_crc, whole.data() + kCrcOffset, sizeof(stored_crc));
  const std::byte zero[4] = {};
  uint32_t crc = Crc32c(whole.subspan(0, kCrcOffset));
  crc = Crc32c(ByteSpan(zero, sizeof(zero)), crc);
  crc = Crc32c(whole.subspan(kCrcOffset + sizeof(zero)), crc);
  if (crc != stored_crc) return absl::DataLossError("page: header checksum");
  GetTables(in, counts, header);
  if (in.failed()) return absl::DataLossError("page: header truncated");
  PAGODA_RETURN_IF_ERROR(CheckHeader(header, counts.header_bytes));
  return header;
}

ContentHash ContentHashOf(const std::vector<SegmentEntry>& segments) {
  ByteWriter out;
  out.PutString("pagoda/content/v1");
  for (const SegmentEntry& s : segments) {
    out.Put(s.length);
    out.Put(s.crc32c);
  }
  return ContentHash{Sha256(out.text())};
}

}  // namespace pagoda
