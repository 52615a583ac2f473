// Where each byte of a page's planes is: the only place that knows. The header and its tables are
// storage/base/page_header.h; kernels/README.md draws both.
//
//   raw16 plane, one layer   K [head][page_tokens][head_dim] bf16, then V likewise
//   sink rows, one layer     K [head][kSinkTokens][head_dim] bf16, then V likewise
//   codes plane, a segment   params [layer][head], then codes [layer][head]; a tile's part of
//                            either is a multiple of 64 bytes (top codes: padded to it)
//
//   codes of a K tile   [page_tokens/32][head_dim/8][32 tokens]   u32 words, e = channels
//   codes of a V tile   [page_tokens/32][v_dim/32][4][32 channels] u32 words, e = tokens
//   opaque plane        what an engine calls a layer of a block; nobody here reads it
//   digest of a tile    [page_tokens/16][rows][head_dim] bf16, to a multiple of 64 bytes; rows 2
//   (low,
//                       high) or 1 (mean): page_score.h
//   a word              byte i holds e[8o+i] in its low and e[8o+4+i] in its high nibble
//   params              K hi   mean fp16 [head_dim], to a multiple of 64 bytes, then a4
//                       V hi   a4        K lo, V lo   16 * a8
//                       a4, 16 * a8      fp16 [group][page_tokens]
//   top codes, bits 5..7 or 6..7 of the code, of a hi tile: params as hi's, with a3 or a2 for a4.
//   Codes: its rows of 32 words, each as
//     16 words of bits 6..7   w[i]     = pairs(hi[i]) | pairs(hi[i+16]) << 2
//     all rows, and then, where bit 5 is there, each as
//     8 words of bit 5        w[i]     = ones(hi[i]) | ones(hi[i+8]) << 1 | ... | ones(hi[i+24]) <<
//     3 pairs(x) = x >> 2 & 0x33333333   ones(x) = x >> 1 & 0x11111111
//
// v_dim is head_dim rounded up to 32; padding channels hold code 8 (hi) and 8 (lo), never read
// back. Groups are the runs of channels that share a scale (ChannelGroups).
//
// Units   bytes, tokens, channels         Threads  pure functions
// Limits  head_dim 16 to 256, a multiple of 8; page_tokens 32, 64, 128 or 256; 1 to 512 layers;
//         1 to 256 heads (so that a page has at most 4096 segments, a layer 64 MiB)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "storage/base/page_header.h"

namespace pagoda::kernels {

struct PageShape {
  int32_t layer_count = 0;
  int32_t head_count = 0;   // kv heads of this page, a tensor-parallel shard
  int32_t head_dim = 0;     // channels
  int32_t page_tokens = 0;  // tokens
  bool operator==(const PageShape&) const = default;
};

constexpr int32_t kTileTokens = 32;    // tokens of one block of code words
constexpr int32_t kOctet = 8;          // elements of one code word
constexpr int32_t kSinkTokens = 4;     // first tokens of a sequence, kept exact
constexpr int32_t kDigestTokens = 16;  // that share a score
constexpr int32_t kHeadDimMax = 256;
constexpr int32_t kPageTokensMax = 256;
constexpr int64_t kSegmentBytesTarget = 256 << 10;

// INVALID_ARGUMENT names the field, its value and what is accepted.
absl::Status ValidatePageShape(const PageShape& shape);

// The shape that a header states; not validated.
PageShape ShapeOf(const PageHeader& header);

// Runs of channels that share a scale: the blocks of the Hadamard transform (powers of two, the
// largest first: 80 = 64 + 16), cut to at most 64 channels.
struct ChannelGroups {
  static constexpr int32_t kCountMax = 8;
  int32_t count = 0;
  std::array<int16_t, kCountMax + 1> begin{};  // begin[count] == head_dim
};
constexpr ChannelGroups GroupsOf(int32_t head_dim) {
  ChannelGroups groups;
  int32_t at = 0;
  for (int32_t block = kHeadDimMax; block >= kOctet; block /= 2) {
    if ((head_dim & block) == 0) continue;
    const int32_t group = block < 64 ? block : 64;
    for (int32_t i = 0; i < block / group; ++i) {
      groups.begin[groups.count++] = static_cast<int16_t>(at);
      at += group;
    }
  }
  groups.begin[groups.count] = static_cast<int16_t>(at);
  return groups;
}

// fp16 words of the mean in the K hi params: head_dim, padded to 64 bytes. a4 follows.
constexpr int64_t MeanWords(int32_t head_dim) { return AlignUp(head_dim, 32); }

// The planes that kernels read; others may stand beside them in a page. Digests are derived: a page
// has them only where someone appended them.
enum class PlaneId : uint8_t {
  kRaw16,
  kKHi,
  kVHi,
  kKLo,
  kVLo,
  kKTop3,  // the upper bits of hi alone: top_codes.h
  kVTop3,
  kKTop2,
  kVTop2,
  kSinkRows,
  kQuestDigest,
  kCentreDigest,
  kMeanDigest,
};
constexpr int32_t kPlaneIdCount = 13;

constexpr bool IsDigest(PlaneId plane) { return plane >= PlaneId::kQuestDigest; }
// Rows of head_dim words that a digest keeps of kDigestTokens tokens.
constexpr int32_t DigestRows(PlaneId digest) { return digest == PlaneId::kMeanDigest ? 1 : 2; }

// Bytes of one layer of a plane, all its heads.
int64_t LayerBytes(PlaneId plane, const PageShape& shape);

// Bytes of one tile (one layer, one head): params and codes of a codes plane, K rows and V rows of
// a raw plane.
struct TileBytes {
  int64_t first = 0;   // params, or K rows, or a digest
  int64_t second = 0;  // codes, or V rows
};
TileBytes TileBytesOf(PlaneId plane, const PageShape& shape);

// Offsets of a tile's two parts from the start of its segment.
TileBytes TileOffsets(PlaneId plane, const PageShape& shape, int32_t segment_layers,
                      int32_t layer_in_segment, int32_t head);

// Appends a plane of all layers: its entry, and its segments with lengths and layers. Whole layers
// per segment, as many as fit kSegmentBytesTarget (at least one), spread evenly. Checksums stay 0
// and offsets unset: call AssignOffsets() after the last plane. REQUIRES: a valid shape.
void AppendPlane(PlaneId plane, const PageShape& shape, PageHeader& header);

// The same for layers [run.begin, run.begin + run.count) alone. REQUIRES: they are the shape's.
struct LayerRun {
  int32_t begin = 0;
  int32_t count = 0;
  bool operator==(const LayerRun&) const = default;
};
void AppendPlane(PlaneId plane, LayerRun run, const PageShape& shape, PageHeader& header);

// The one plane of a page whose bytes are an engine's own: layer_bytes for each layer, of this
// page's heads. Segments as above; offsets are assigned.
constexpr uint32_t kOpaqueLayerBytesMax = 16 << 20;
absl::Status ValidateOpaquePage(int64_t layer_count, int64_t layer_bytes);
// REQUIRES: valid; header.planes empty.
void AppendOpaquePlane(uint16_t layer_count, uint32_t layer_bytes, PageHeader& header);
// The runs of layers that its segments are.
std::vector<LayerRun> OpaqueSegmentLayers(uint16_t layer_count, uint32_t layer_bytes);

// Layers whose K keeps its lo plane at q4 (layer_profile.h says why): ascending, each once. Empty:
// plain q4.
using KLoLayers = absl::Span<const int32_t>;

// Each run of neighbouring layers is a plane entry of its own, and a page has at most 64.
constexpr int32_t kKLoRunsMax = 56;

std::vector<LayerRun> RunsOf(KLoLayers layers);
// INVALID_ARGUMENT: not ascending, not below layer_count, or more than kKLoRunsMax runs.
absl::Status ValidateKLoLayers(KLoLayers layers, int32_t layer_count);

// Which plane of ours an entry describes, of whatever layers; nothing for planes that kernels do
// not read.
std::optional<PlaneId> PlaneIdOf(const PlaneEntry& entry);

// Appends the planes of a page of raw16, q8, q4, q3 or q2 and assigns the offsets. Encoded pages at
// position 0 also carry the sink rows; q4 pages K lo of `k_lo_layers`, which others ignore.
// REQUIRES: a valid shape and layers; header.planes empty.
void AppendPlanes(Precision precision, const PageShape& shape, PageHeader& header,
                  KLoLayers k_lo_layers = {});

}  // namespace pagoda::kernels
