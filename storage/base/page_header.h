// The header of a page: what it holds, for whom, computed how, and where each plane's bytes are.
// Byte layout is drawn in kernels/README.md. The header knows no codec: it names bytes.
//
//   header (header_bytes, a multiple of 4096) | segment | segment | ...   each segment at a
//   multiple of 4096
//
// A plane is a separately movable piece (kind, tensor, bit range, layers, heads). Its bytes are
// segments: runs of whole layers of about 64 to 256 KiB, each with its own CRC32C, so that
// fetching, verifying, dropping and refining all work by segment.
//
// Threads    values; no shared state.
// Errors     DATA_LOSS            truncated, wrong magic, checksum, or inconsistent table
//            FAILED_PRECONDITION  another version, or a tag (kind, precision) this build does not
//            know
// Limits     64 planes, 4096 segments, 65536 token ids, header of 512 KiB
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/bytes.h"
#include "storage/base/model_spec.h"
#include "storage/base/page_key.h"
#include "storage/base/precision.h"
#include "storage/base/scope.h"

namespace pagoda {

constexpr int64_t kSegmentAlignBytes = 4096;  // O_DIRECT, DMA and NCCL windows want this
constexpr uint16_t kPageVersion = 1;

// How the stored K and V relate to what the model computed. A reader that does not know a tag
// must refuse the page.
enum class Rotation : uint8_t {
  kNone = 0,
  kHadamardV1 = 1,  // codes are in the rotated frame of kernels/hadamard.h
};
enum class RopeState : uint8_t { kNotApplicable = 0, kPostRope = 1, kPreRope = 2 };
enum class CodeRecipe : uint16_t {
  kNone = 0,       // raw16 or opaque
  kEmbedded8 = 1,  // design: centred, rotated, one 8-bit mid-rise code; kernels/codec.h
};
enum class PlaneStorage : uint8_t { kInline = 0, kAlias = 1, kDelta = 2 };

struct PlaneEntry {
  PlaneKind kind = PlaneKind::kRaw16;
  Tensor tensor = Tensor::kBoth;
  uint8_t bit_begin = 0;  // of the embedded code; hi is bits 4 to 8, lo is 0 to 4
  uint8_t bit_count = 0;
  PlaneStorage storage = PlaneStorage::kInline;
  uint16_t layer_begin = 0;
  uint16_t layer_count = 0;
  uint16_t head_begin = 0;
  uint16_t head_count = 0;
  uint16_t row_begin = 0;  // raw rows only
  uint16_t row_count = 0;
  uint32_t first_segment = 0;
  uint32_t segment_count = 0;
  bool operator==(const PlaneEntry&) const = default;
};

struct SegmentEntry {
  uint64_t offset = 0;  // from the start of the page; a multiple of kSegmentAlignBytes
  uint32_t length = 0;  // payload bytes, without padding
  uint32_t crc32c = 0;  // of the payload
  uint16_t layer_begin = 0;
  uint16_t layer_count = 0;
  std::array<uint8_t, 32> seal{};  // reserved: IV and tag of encryption at rest
  int64_t stored_bytes() const { return AlignUp(length, kSegmentAlignBytes); }
  bool operator==(const SegmentEntry&) const = default;
};

struct PusherIdTag;
using PusherId = DigestId<PusherIdTag, 16>;
struct ContentHashTag;
using ContentHash = DigestId<ContentHashTag>;

struct PageHeader {
  Identity identity;
  RecordKey record;  // key, group, kv-head range
  PageKey parent;
  bool parent_is_root = false;
  ScopeId scope;
  ScopeKind scope_kind = ScopeKind::kPrivate;
  Precision fidelity = Precision::kRaw16;  // lowest precision read while this was computed
  uint32_t page_tokens = 0;
  uint64_t base_position = 0;  // position of the first token
  uint16_t layer_count = 0;
  uint16_t head_dim = 0;
  Rotation rotation = Rotation::kNone;
  RopeState rope = RopeState::kPostRope;
  double rope_theta = 0;
  CodeRecipe recipe = CodeRecipe::kNone;
  uint64_t backend_tag = 0;  // which arithmetic produced the K and V; compared, never interpreted
  PusherId pusher;
  ContentHash content_hash;  // of the raw16 that was pushed: ContentHashOf(its segments)
  PageKey chunk_key;         // position-free; zero when the token ids are unknown
  uint64_t created_unix_seconds = 0;
  std::vector<PlaneEntry> planes;
  std::vector<SegmentEntry> segments;  // planes in order, each plane's segments together
  std::vector<uint32_t> token_ids;     // empty when the pusher had none

  int64_t header_bytes() const;  // padded to kSegmentAlignBytes
  int64_t stored_bytes() const;  // header and all segments, padding counted
  bool operator==(const PageHeader&) const = default;
};

// The lowest precision at which every K and V element can be read from these planes; kNone if a
// part is missing.
Precision PrecisionOf(const std::vector<PlaneEntry>& planes);

// Gives every segment its offset, in order, after the header. Call after the tables are complete.
void AssignOffsets(PageHeader& header);

// Exactly header_bytes() bytes, checksum included. REQUIRES: offsets assigned, limits held.
std::string EncodePageHeader(const PageHeader& header);

// Decodes and verifies; every field is checked before it is used. `bytes` may be longer.
absl::StatusOr<PageHeader> DecodePageHeader(ByteSpan bytes);

// SHA-256 over the lengths and checksums of the segments: a fingerprint, not a signature.
ContentHash ContentHashOf(const std::vector<SegmentEntry>& segments);

}  // namespace pagoda
