// One warp decodes 32 tokens of one tensor: a lane holds every 32nd channel of a row, turns the row
// back and stores it. Rows that are exact (raw16, sinks) are converted.
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tile.cuh"

namespace pagoda::kernels::cuda {
namespace {

__device__ void StoreRow(float* row, int c, float x) { row[c] = x; }
__device__ void StoreRow(uint16_t* row, int c, float x) { row[c] = Bf16FromFloat(x); }

// Level of one element of an octet word.
__device__ float LevelOf(const TileCodes& codes, int64_t word, int element) {
  const int shift = element % 4 * 8 + element / 4 * 4;
  const uint32_t hi = codes.hi[word] >> shift & 15;
  if (codes.lo == nullptr) return static_cast<float>(hi) - 7.5f;
  return static_cast<float>(16 * hi + (codes.lo[word] >> shift & 15)) - 127.5f;
}

// One row of codes in the lanes' layout, un-rotated.
template <int D, bool kIsK>
__device__ void DecodeRow(const TileCodes& codes, int token, int page_tokens, int lane,
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

template <int D, bool kIsK, typename Row>
__device__ void DecodeBlock(const TileOfHead<D>& tile, int block, int64_t token_stride,
                            Row* target) {
  const int lane = threadIdx.x;
  const uint16_t* exact = kIsK ? tile.KeyRows() : tile.ValueRows();
  const int exact_count = tile.IsRaw() ? tile.first.token_count : tile.first.sink_count;
  const TileCodes codes = kIsK ? tile.KeyCodes() : tile.ValueCodes();
  const int end = Least(tile.first.token_count, kTileTokens * (block + 1));
  for (int token = kTileTokens * block; token < end; ++token) {
    float x[kChannelsOfLane<D>];
    if (token < exact_count) {
#pragma unroll
      for (int i = 0; i < kChannelsOfLane<D>; ++i) {
        const int c = kLanes * i + lane;
        x[i] = c < D ? Bf16ToFloat(exact[int64_t{token} * D + c]) : 0.0f;
      }
    } else {
      DecodeRow<D, kIsK>(codes, token, tile.page_tokens, lane, x);
    }
    Row* row = target + token * token_stride;
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      if (kLanes * i + lane < D) StoreRow(row, kLanes * i + lane, x[i]);
    }
  }
}

// Grid: blocks of 32 tokens times K and V, heads, tiles.
template <int D, typename Row>
__global__ void __launch_bounds__(kLanes) DequantizeKernel(DequantizeParams p) {
  const TileOfHead<D> tile{p.tiles[blockIdx.z], static_cast<int>(blockIdx.y), p.page_tokens};
  const int block = blockIdx.x / 2;
  const int64_t offset = p.target_offset[blockIdx.z] + int64_t{blockIdx.y} * p.head_stride;
  if (blockIdx.x % 2 == 0) {
    DecodeBlock<D, true>(tile, block, p.token_stride, static_cast<Row*>(p.k) + offset);
  } else {
    DecodeBlock<D, false>(tile, block, p.token_stride, static_cast<Row*>(p.v) + offset);
  }
}

template <int D>
const char* Launch(const DequantizeParams& p, Stream stream) {
  constexpr int kTilesOfLaunch = 32768;  // a grid's third dimension ends at 65535
  for (int first = 0; first < p.tile_count; first += kTilesOfLaunch) {
    DequantizeParams part = p;
    part.tiles += first;
    part.target_offset += first;
    const dim3 grid(2 * (p.page_tokens / kTileTokens), p.kv_head_count,
                    Least(p.tile_count - first, kTilesOfLaunch));
    if (p.row_type == RowType::kFloat) {
      PAGODA_LAUNCH((DequantizeKernel<D, float>), grid, kLanes, 0, stream, part);
    } else {
      PAGODA_LAUNCH((DequantizeKernel<D, uint16_t>), grid, kLanes, 0, stream, part);
    }
    if (const char* error = LaunchError()) return error;
  }
  return nullptr;
}

}  // namespace

const char* LaunchDequantize(const DequantizeParams& p, Stream stream) {
  return ForHeadDim(p.head_dim, [&](auto dim) { return Launch<dim.value>(p, stream); });
}

}  // namespace pagoda::kernels::cuda
