// Digests: a warp takes 16 tokens, a lane every 32nd channel. Scores: a warp takes 16 tokens, a
// lane every 32nd pair of channels, for one query head after another.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/page_score_cuda.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/digest_words.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kScoreWarps = 4;

// u16 words of one head's digest.
template <int D>
__host__ __device__ constexpr int64_t DigestWords(int page_tokens, int rows) {
  return AlignUp(int64_t{page_tokens} / kDigestTokens * rows * D, 32);
}

// Of a lane's channels, over the tokens of a unit.
template <int D>
struct Columns {
  float low[kChannelsOfLane<D>];
  float high[kChannelsOfLane<D>];
  float sum[kChannelsOfLane<D>] = {};
  float greatest = 0;  // magnitude

  __device__ Columns() {
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      low[i] = INFINITY;
      high[i] = -INFINITY;
    }
  }
  __device__ void Add(const float (&x)[kChannelsOfLane<D>]) {
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      low[i] = fminf(low[i], x[i]);
      high[i] = fmaxf(high[i], x[i]);
      sum[i] = __fadd_rn(sum[i], x[i]);
      greatest = fmaxf(greatest, fabsf(x[i]));
    }
  }
};

// What decoding may have moved a key by: SlackOf() in page_score_cpu.cc.
template <int D>
__device__ float SlackOf(const TileRows<D, true>& rows, bool raw, float greatest, int lane) {
  if (raw) return 0;
  float mean = 0;
#pragma unroll
  for (int i = 0; i < kChannelsOfLane<D>; ++i) {
    const int c = kLanes * i + lane;
    if (c < D) mean = fmaxf(mean, fabsf(Fp16ToFloat(rows.codes.mean[c])));
  }
  return __fmul_rn(kDigestSlack, __fadd_rn(MaxOfLanes(greatest), MaxOfLanes(mean)));
}

// Grid: units of 16 tokens, kv heads, tiles.
template <int D>
__global__ void __launch_bounds__(kLanes) BuildDigestKernel(BuildDigestParams p) {
  constexpr int kCount = kChannelsOfLane<D>;
  const int lane = threadIdx.x;
  const int row_count = DigestRows(p.digest);
  const TileOfHead<D> tile{p.tiles[blockIdx.z], static_cast<int>(blockIdx.y), p.page_tokens};
  uint16_t* low = p.words[blockIdx.z] + blockIdx.y * DigestWords<D>(p.page_tokens, row_count) +
                  int64_t{blockIdx.x} * row_count * D;
  uint16_t* high = low + (row_count - 1) * D;
  const int begin = kDigestTokens * blockIdx.x;
  const int end = Least(begin + kDigestTokens, tile.first.token_count);
  if (begin >= end) {
    for (int c = lane; c < row_count * D; c += kLanes) low[c] = 0;
    return;
  }
  const TileRows<D, true> rows(tile);
  Columns<D> columns;
  float x[kCount];
  for (int token = begin; token < end; ++token) {
    rows.Read(token, lane, x);
    columns.Add(x);
  }
  const float count = static_cast<float>(end - begin);
  const float slack = SlackOf<D>(rows, tile.IsRaw(), columns.greatest, lane);
  float distance[kCount] = {};
  if (p.digest == PlaneId::kCentreDigest) {
    for (int token = begin; token < end; ++token) {
      rows.Read(token, lane, x);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        distance[i] += fabsf(x[i] - (0.5f * columns.low[i] + 0.5f * columns.high[i]));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int c = kLanes * i + lane;
    if (c >= D) continue;
    if (p.digest == PlaneId::kMeanDigest) {
      low[c] = Bf16FromFloat(__fdiv_rn(columns.sum[i], count));
    } else if (p.digest == PlaneId::kQuestDigest) {
      low[c] = Bf16Below(__fsub_rn(columns.low[i], slack));
      high[c] = Bf16Above(__fadd_rn(columns.high[i], slack));
    } else {
      const float middle = 0.5f * columns.low[i] + 0.5f * columns.high[i];
      low[c] = Bf16FromFloat(middle - distance[i] / count);
      high[c] = Bf16FromFloat(middle + distance[i] / count);
    }
  }
}

// Grid: units of all tiles / 4, kv heads.
template <int D>
__global__ void __launch_bounds__(kScoreWarps* kLanes) ScorePagesKernel(DeviceScoreParams p) {
  constexpr int kPairs = (D / 2 + kLanes - 1) / kLanes;  // of channels of a lane
  const int lane = threadIdx.x % kLanes;
  const int units = p.page_tokens / kDigestTokens;
  const int64_t index = int64_t{blockIdx.x} * kScoreWarps + threadIdx.x / kLanes;
  const int64_t count = int64_t{p.tile_count} * units;
  if (index >= count) return;
  const DigestTile tile = p.tiles[index / units];
  const int unit = static_cast<int>(index % units);
  const int row_count = DigestRows(p.digest);
  const uint16_t* words = tile.words + blockIdx.y * DigestWords<D>(p.page_tokens, row_count) +
                          int64_t{unit} * row_count * D;
  const bool empty = kDigestTokens * unit >= tile.token_count;
  uint32_t low[kPairs];
  uint32_t high[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = kLanes * i + lane;
    const bool there = pair < D / 2 && !empty;
    low[i] = there ? reinterpret_cast<const uint32_t*>(words)[pair] : 0;
    high[i] = there ? reinterpret_cast<const uint32_t*>(words + (row_count - 1) * D)[pair] : 0;
  }
  const float slack = p.digest == PlaneId::kQuestDigest ? SumSlack(D) : 0.0f;
  for (int g = 0; g < p.group_count; ++g) {
    const int64_t row = int64_t{blockIdx.y} * p.group_count + g;
    float sum = 0;
    float magnitude = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = kLanes * i + lane;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float q = pair < D / 2 ? p.q[row * D + 2 * pair + half] : 0.0f;
        const float a = Bf16ToFloat(low[i] >> (16 * half) & 0xffff);
        const float b = Bf16ToFloat(high[i] >> (16 * half) & 0xffff);
        const float product = fmaxf(__fmul_rn(q, a), __fmul_rn(q, b));
        sum = __fadd_rn(sum, product);
        magnitude = __fadd_rn(magnitude, fabsf(product));
      }
    }
    const float score = SumOfLanes(sum) + slack * SumOfLanes(magnitude);
    if (lane == 0) p.scores[row * count + index] = empty ? -INFINITY : score;
  }
}

}  // namespace

const char* LaunchBuildDigests(const BuildDigestParams& p, Stream stream) {
  return ForHeadDim(p.head_dim, [&](auto dim) {
    const dim3 grid(p.page_tokens / kDigestTokens, p.kv_head_count, p.tile_count);
    PAGODA_LAUNCH((BuildDigestKernel<decltype(dim)::value>), grid, kLanes, 0, stream, p);
    return LaunchError();
  });
}

const char* LaunchScorePages(const DeviceScoreParams& p, Stream stream) {
  return ForHeadDim(p.head_dim, [&](auto dim) {
    const int unit_count = p.tile_count * (p.page_tokens / kDigestTokens);
    const dim3 grid((unit_count + kScoreWarps - 1) / kScoreWarps, p.kv_head_count);
    PAGODA_LAUNCH((ScorePagesKernel<decltype(dim)::value>), grid, kScoreWarps * kLanes, 0, stream,
                  p);
    return LaunchError();
  });
}

}  // namespace pagoda::kernels::cuda
