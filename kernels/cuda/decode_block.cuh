// What the decode kernels share: which tokens a warp takes, and how the states of a block's warps
// become the partial state of its rows.
#pragma once

#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/tile.cuh"

namespace pagoda::kernels::cuda {

constexpr int kDecodeWarps = 4;

// Blocks of a multiprocessor that a kernel asks for. Asking for one keeps the compiler from
// spilling registers to make room for more; asking for none lets it choose.
template <bool kNoSpills>
constexpr int kBlocksAsked = kNoSpills ? 1 : 0;

// A block's shared memory for H query heads: what it needs while it reads pages, then the outputs
// of its warps.
template <int D, int H, typename Reading>
struct DecodeShared {
  union {
    Reading reading;
    float o[kDecodeWarps][H][D];
  };
  float max[kDecodeWarps][H];
  float sum[kDecodeWarps][H];
};

// The query heads of a block. Grid: splits, kv heads times runs of H query heads, sequences.
struct DecodeHeads {
  int kv_head;
  int count;          // at most H
  int64_t first_row;  // of q and of the states
};

template <int H>
__device__ inline DecodeHeads HeadsOfBlock(const DecodeParams& p) {
  const int run_count = (p.group_count + H - 1) / H;
  const int kv_head = blockIdx.y / run_count;
  const int first = blockIdx.y % run_count * H;
  return {kv_head, Least(H, p.group_count - first),
          (int64_t{blockIdx.z} * p.kv_head_count + kv_head) * p.group_count + first};
}

// Block `block` of a tile, as far as it is seen from `position`: exact rows, then codes.
template <int D, typename Rows, typename Codes>
__device__ inline void VisitBlock(const TileOfHead<D>& tile, int block, int64_t position,
                                  const Rows& rows, const Codes& codes) {
  const int64_t seen = position - tile.first.base_position + 1;
  const int begin = kTileTokens * block;
  int end = tile.first.token_count;
  if (seen < end) end = static_cast<int>(seen);
  end = Least(end, begin + kTileTokens);
  if (seen <= 0 || end <= begin) return;
  int exact = begin;
  if (tile.IsRaw()) {
    exact = end;
  } else if (block == 0) {  // sinks stand in the first block: kSinkTokens < 32
    exact = Least(end, tile.first.sink_count);
  }
  if (exact > begin) {
    const int64_t row = int64_t{begin} * D;
    rows(tile.KeyRows() + row, tile.ValueRows() + row, exact - begin);
  }
  if (exact < end) codes(tile, block, exact, end);
}

// The blocks of 32 tokens that this warp reads: every fourth of its split's. Calls
//   rows(k, v, count)               `count` rows of bf16, at most 32
//   codes(tile, block, begin, end)  tokens begin to end of a tile's block
template <int D, typename Rows, typename Codes>
__device__ inline void VisitTokens(const DecodeParams& p, int kv_head, const Rows& rows,
                                   const Codes& codes) {
  const int tile_begin = p.tile_begin[blockIdx.z];
  const int tile_count = p.tile_begin[blockIdx.z + 1] - tile_begin;
  const int per_split = (tile_count + p.split_count - 1) / p.split_count;
  const int first = Least(tile_count, static_cast<int>(blockIdx.x) * per_split);
  const int last = Least(tile_count, first + per_split);
  const int blocks_of_tile = p.page_tokens / kTileTokens;
  for (int i = threadIdx.x / kLanes; i < (last - first) * blocks_of_tile; i += kDecodeWarps) {
    const PageTile& of_head_0 = p.tiles[tile_begin + first + i / blocks_of_tile];
    VisitBlock<D>(TileOfHead<D>{of_head_0, kv_head, p.page_tokens}, i % blocks_of_tile,
                  p.position[blockIdx.z], rows, codes);
  }
}

// Writes the partial states of the block's rows. REQUIRES: every warp's state is in `shared`, and
// all threads have passed a barrier since.
template <int D, int H, typename Reading>
__device__ inline void WriteStates(const DecodeShared<D, H, Reading>& shared,
                                   const DecodeHeads& heads, const DecodeParams& p) {
  const int64_t row_count = int64_t{p.sequence_count} * p.kv_head_count * p.group_count;
  for (int i = threadIdx.x; i < heads.count * D; i += kDecodeWarps * kLanes) {
    const int h = i / D;
    float greatest = -INFINITY;
    for (int w = 0; w < kDecodeWarps; ++w) greatest = fmaxf(greatest, shared.max[w][h]);
    float sum = 0;
    float o = 0;
    for (int w = 0; w < kDecodeWarps; ++w) {
      if (shared.sum[w][h] == 0.0f) continue;  // saw no token: max is -inf
      const float keep = exp2f(shared.max[w][h] - greatest);
      sum += keep * shared.sum[w][h];
      o += keep * shared.o[w][h][i % D];
    }
    const int64_t row = int64_t{blockIdx.x} * row_count + heads.first_row + h;
    // Only what saw no token is empty: NaN is handed on.
    p.part_o[row * D + i % D] = sum == 0.0f ? 0.0f : o / sum;
    if (i % D == 0) p.part_lse2[row] = sum == 0.0f ? -INFINITY : greatest + log2f(sum);
  }
}

}  // namespace pagoda::kernels::cuda
