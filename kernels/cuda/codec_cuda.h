// Encoding of raw16 tiles and decoding of tiles back to rows on a GPU: the twins of codec.h.
// Encoded bytes are those of EncodeTileRef, bit for bit: the same float operations in the same
// order, none contracted.
//
// Memory     all pointers, also those inside tiles, are the device's; rows and codes 16-byte
// aligned Threads    calls enqueue work on the stream and return Errors     INVALID_ARGUMENT  shape
// outside the limits, null pointer
//            INTERNAL          the launch failed
//            A tile that the codec refuses (codec.h: NaN, infinity, too great) sets its word in
//            `refused`; its output is then unspecified and its page stays raw16.
// Limits     head_dim 64, 80, 96, 128 or 256; page_tokens as in page_layout.h; 1 to 2^20 tiles
// Error      of decoding: as |Cpu - Ref| in codec.h; to bf16: and half a unit of its last place
// Cost       encode reads K once per 32 tokens (the mean needs all rows), V once
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/codec.h"
#include "kernels/cuda/stream.h"

namespace pagoda::kernels::cuda {

struct EncodeParams {
  const EncodeTileParams* tiles = nullptr;  // [tile_count], in the device's memory
  uint32_t* refused = nullptr;              // [tile_count], zeroed by the caller
  int32_t tile_count = 0;
  int32_t head_dim = 0;  // of all tiles; the fields in each tile are not read
  int32_t page_tokens = 0;
};

absl::Status EncodeTilesCuda(const EncodeParams& params, Stream stream);

enum class RowType : uint8_t { kFloat, kBf16 };

// Rows of K and V, un-rotated, at element
//   target_offset[tile] + head * head_stride + token * token_stride + channel
// which covers the paged caches of engines, [block][head][token] and [block][token][head].
struct DequantizeParams {
  const PageTile* tiles = nullptr;         // [tile_count], kv head 0; others follow as in a page
  const int64_t* target_offset = nullptr;  // [tile_count]
  void* k = nullptr;                       // of row_type, written: token_count rows of each tile
  void* v = nullptr;
  int64_t head_stride = 0;  // elements
  int64_t token_stride = 0;
  int32_t tile_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  RowType row_type = RowType::kBf16;
};

absl::Status DequantizeTilesCuda(const DequantizeParams& params, Stream stream);

}  // namespace pagoda::kernels::cuda
