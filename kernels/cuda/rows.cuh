// Rows of a tile in the lanes' layout (lanes.cuh), un-rotated: converted where they are exact, else
// decoded in the order of codec.h. One warp.
#pragma once

#include "kernels/cuda/tile.cuh"

namespace pagoda::kernels::cuda {

// Level of one element of an octet word.
__device__ inline float LevelOf(const TileCodes& codes, int64_t word, int element) {
  const int shift = element % 4 * 8 + element / 4 * 4;
  const uint32_t hi = codes.hi[word] >> shift & 15;
  if (codes.lo == nullptr) return static_cast<float>(hi) - 7.5f;
  return static_cast<float>(16 * hi + (codes.lo[word] >> shift & 15)) - 127.5f;
}

template <int D, bool kIsK>
__device__ inline void DecodeRow(const TileCodes& codes, int token, int page_tokens, int lane,
                                 float (&x)[kChannelsOfLane<D>]) {
  const int block = token / kTileTokens;
  const int t = token % kTileTokens;
#pragma unroll
  for (int i = 0; i < kChannelsOfLane<D>; ++i) {
    const int c = kLanes * i + lane;
    x[i] = 0;
    if (c >= D) continue;
    const int64_t word = kIsK ? TileShape<D>::KBlock(block) + c / kOctet * kTileTokens + t
                              : TileShape<D>::VBlock(block) + (i * 4 + t / kOctet) * 32 + lane;
    const float level = LevelOf(codes, word, kIsK ? c % kOctet : t % kOctet);
    x[i] = __fmul_rn(level, codes.Scale(GroupOfRun<D>(i) * page_tokens + token));
    if (kIsK) x[i] = __fadd_rn(x[i], Fp16ToFloat(codes.mean[c]));
  }
  RotateLanesBackward<D>(x, lane);
}

// One tensor of a tile, by rows.
template <int D, bool kIsK>
struct TileRows {
  TileCodes codes;
  const uint16_t* exact;
  int exact_count;
  int page_tokens;

  __device__ explicit TileRows(const TileOfHead<D>& tile)
      : codes(kIsK ? tile.KeyCodes() : tile.ValueCodes()),
        exact(kIsK ? tile.KeyRows() : tile.ValueRows()),
        exact_count(tile.IsRaw() ? tile.first.token_count : tile.first.sink_count),
        page_tokens(tile.page_tokens) {}

  __device__ void Read(int token, int lane, float (&x)[kChannelsOfLane<D>]) const {
    if (token >= exact_count) {
      DecodeRow<D, kIsK>(codes, token, page_tokens, lane, x);
      return;
    }
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      const int c = kLanes * i + lane;
      x[i] = c < D ? Bf16ToFloat(exact[int64_t{token} * D + c]) : 0.0f;
    }
  }
};

}  // namespace pagoda::kernels::cuda
