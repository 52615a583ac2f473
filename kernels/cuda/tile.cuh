// Where the parts of a tile are, for head_dim D: page_layout.h in device code.
#pragma once

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/lanes.cuh"
#include "kernels/page_view.h"

namespace pagoda::kernels::cuda {

// Codes and scales of one tensor of one tile.
struct TileCodes {
  const uint32_t* hi;
  const uint32_t* lo;      // null: hi alone
  const uint16_t* scales;  // [group][page_tokens]: a4, or 16 * a8 with lo

  __device__ float Scale(int index) const {
    const float scale = Fp16ToFloat(scales[index]);
    return lo == nullptr ? scale : 0.0625f * scale;
  }
};

// Where tokens and channels are in a tile of head_dim D: page_layout.h.
template <int D>
struct TileShape {
  static constexpr int kOctets = D / kOctet;
  static constexpr int kRuns = (D + 31) / 32;  // of 32 channels of V
  static constexpr int kMeanWords = (D + 31) / 32 * 32;

  // u32 words before a block of 32 tokens.
  __host__ __device__ static constexpr int64_t KBlock(int block) {
    return int64_t{block} * kOctets * kTileTokens;
  }
  __host__ __device__ static constexpr int64_t VBlock(int block) {
    return int64_t{block} * kRuns * 4 * 32;
  }
};

template <int D>
__device__ inline TileCodes KeyCodes(const PageTile& tile) {
  const bool lo = tile.k_lo != nullptr;
  return {tile.k_hi, tile.k_lo,
          lo ? tile.k_lo_params : tile.k_hi_params + TileShape<D>::kMeanWords};
}
template <int D>
__device__ inline TileCodes ValueCodes(const PageTile& tile) {
  const bool lo = tile.v_lo != nullptr;
  return {tile.v_hi, tile.v_lo, lo ? tile.v_lo_params : tile.v_hi_params};
}

__host__ __device__ constexpr int Least(int a, int b) { return a < b ? a : b; }

// `tile` of kv head 0 becomes that of `head`.
template <int D>
__device__ inline PageTile TileOfHead(PageTile tile, int head, int page_tokens) {
  const int64_t scales = int64_t{head} * kGroupCount<D> * page_tokens;
  const int64_t k_words = head * TileShape<D>::KBlock(page_tokens / kTileTokens);
  const int64_t v_words = head * TileShape<D>::VBlock(page_tokens / kTileTokens);
  const int64_t rows = int64_t{head} * page_tokens * D;
  const int64_t sinks = int64_t{head} * kSinkTokens * D;
  if (tile.precision == Precision::kRaw16) {
    tile.raw_k += rows;
    tile.raw_v += rows;
    return tile;
  }
  tile.k_hi_params += scales + int64_t{head} * TileShape<D>::kMeanWords;
  tile.v_hi_params += scales;
  tile.k_hi += k_words;
  tile.v_hi += v_words;
  if (tile.k_lo != nullptr) {
    tile.k_lo_params += scales;
    tile.k_lo += k_words;
  }
  if (tile.v_lo != nullptr) {
    tile.v_lo_params += scales;
    tile.v_lo += v_words;
  }
  if (tile.sink_count > 0) {
    tile.sink_k += sinks;
    tile.sink_v += sinks;
  }
  return tile;
}

}  // namespace pagoda::kernels::cuda
