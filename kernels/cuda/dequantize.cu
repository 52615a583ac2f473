// One warp decodes 32 tokens of one tensor: a lane holds every 32nd channel of a row, turns the row
// back and stores it. Rows that are exact (raw16, sinks) are converted.
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/rows.cuh"

namespace pagoda::kernels::cuda {
namespace {

__device__ void StoreRow(float* row, int c, float x) { row[c] = x; }
__device__ void StoreRow(uint16_t* row, int c, float x) { row[c] = Bf16FromFloat(x); }

template <int D, bool kIsK, typename Row>
__device__ void DecodeBlock(const TileOfHead<D>& tile, int block, int64_t token_stride,
                            Row* target) {
  const int lane = threadIdx.x;
  const TileRows<D, kIsK> rows(tile);
  const int end = Least(tile.first.token_count, kTileTokens * (block + 1));
  for (int token = kTileTokens * block; token < end; ++token) {
    float x[kChannelsOfLane<D>];
    rows.Read(token, lane, x);
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
