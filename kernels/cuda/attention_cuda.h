// Decode attention and the merge of partial states on a GPU: the twins of attention.h (one query a
// sequence) and merge_states.h, on pages as they are stored, precisions mixed at will.
//
// Decode splits each sequence's pages among `split_count` blocks and leaves one partial state for
// each: normalised o and log2 of the sum, empty = (0, -inf). MergeStatesCuda makes one of them, and
// of states from elsewhere: a CPU's pages, a shared prefix.
//
// Memory     All pointers in the parameters, and those inside the tiles, are the device's. Parts of
//            tiles 16-byte aligned (PageView gives 64), out and q 4.
// Threads    Calls enqueue work on the stream and return; they share nothing.
// Errors     INVALID_ARGUMENT  shape outside the limits, null pointer, not finite scale
//            INTERNAL          the launch failed; the text has CUDA's reason
//            Tiles are not checked: ValidateDeviceTiles() does that on the host, before upload.
// Limits     head_dim 64, 80, 96, 128 or 256; page_tokens as in page_layout.h; group_count 1 to
//            64; split_count 1 to 1024
// Error      kLanes: as |Cpu - Ref| in attention.h, float arithmetic throughout.
//            kTensorCores, with E and V of attention.h, over all tokens seen:
//              E' = 4 * E + 2^-17 * softmax_scale * log2(e) * max_t(||q|| * (||k_t|| + ||mu||))
//              out   2 * V * (E' + 2^-20 + (N + 64) * 2^-24) + 2^-17 * V,
//                    and 2^-12 * sqrt(head_dim) * V where codes are among the pages
//              lse2  as there, with E'
//            4: sums may truncate. 2^-17: q and, for rows, p are two bf16 words, which leave that
//            much of an element; two f16 words leave less. For codes p times the scale of V is one
//            f16: 2^-11 of a weight, times the groups of a transform's block in the output, which
//            is below 2^-12 * sqrt(head_dim) for every head_dim.
// Cost       each tile is read once per 8 query heads of a group
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cuda/stream.h"
#include "kernels/page_view.h"

namespace pagoda::kernels::cuda {

// What multiplies. Either serves every shape.
enum class DecodeUnit {
  kBest,         // lanes for one query head of a kv head, tensor cores for more
  kLanes,        // float arithmetic of single threads
  kTensorCores,  // sm_80 and later
};

struct DecodeParams {
  // [sequence][kv_head][group][head_dim], after RoPE, not rotated.
  const float* q = nullptr;
  // Tiles of kv head 0 in one layer, all sequences after another; other heads follow each part at
  // the tile's size, as in a page (page_layout.h). Any order within a sequence.
  const PageTile* tiles = nullptr;
  const int32_t* tile_begin = nullptr;  // [sequence_count + 1], indices of tiles
  const int64_t* position = nullptr;    // [sequence_count]: tokens up to and with it are seen
  float* part_o = nullptr;     // [split][row][head_dim], written; row = (sequence, kv_head, group)
  float* part_lse2 = nullptr;  // [split][row], written
  int32_t sequence_count = 0;
  int32_t kv_head_count = 0;
  int32_t group_count = 0;  // query heads of a kv head
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  int32_t split_count = 0;
  float softmax_scale = 0;  // usually 1 / sqrt(head_dim)
  DecodeUnit unit = DecodeUnit::kBest;
};

absl::Status DecodeAttentionCuda(const DecodeParams& params, Stream stream);

// One state of each row out of `part_count`. `o` may be part_o, and lse2 part_lse2: part 0 is then
// the target.
struct MergeParams {
  const float* part_o = nullptr;     // [part][row][head_dim]
  const float* part_lse2 = nullptr;  // [part][row]
  float* o = nullptr;                // [row][head_dim]
  float* lse2 = nullptr;             // [row]
  int64_t row_count = 0;
  int32_t part_count = 0;
  int32_t head_dim = 0;  // 1 to 256
};

absl::Status MergeStatesCuda(const MergeParams& params, Stream stream);

// What kernels on the device rely on: ValidateTile(), and parts aligned to 16 bytes.
// Pointers are looked at, not followed.
absl::Status ValidateDeviceTiles(absl::Span<const PageTile> tiles, int32_t page_tokens);

}  // namespace pagoda::kernels::cuda
