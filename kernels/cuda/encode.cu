// One warp encodes 32 tokens of one tensor of a tile: rotates rows across its lanes, turns them in
// shared memory so that a lane has a token, and then walks the channels in order, as the recipe
// says. Every float operation is one of __f*_rn: no compiler may contract it.
#include "kernels/codec_input.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tile.cuh"

namespace pagoda::kernels::cuda {
namespace {

template <int D>
struct EncodeShared {
  float y[D][kTileTokens + 1];  // one more: columns then lie in different banks
};

__device__ bool IsEncodable(uint16_t bf16) {
  constexpr uint16_t kMax = Bf16FromFloat(kEncodeMagnitudeMax);
  return (bf16 & 0x7fffu) <= kMax;
}

struct Target {
  uint16_t* a4;
  uint16_t* stored_a8;  // 16 * a8; null: hi alone
  uint32_t* hi;
  uint32_t* lo;
};

// The mean of the rotated keys, rounded to fp16, in the lanes' layout. False: fp16 cannot hold it.
template <int D>
__device__ bool MeanOfKeys(const uint16_t* k, int page_tokens, int lane,
                           float (&mean)[kChannelsOfLane<D>], uint16_t* params) {
#pragma unroll
  for (int i = 0; i < kChannelsOfLane<D>; ++i) {
    const int c = kLanes * i + lane;
    mean[i] = 0;
    for (int t = 0; c < D && t < page_tokens; ++t) {
      mean[i] = __fadd_rn(mean[i], Bf16ToFloat(k[int64_t{t} * D + c]));
    }
    mean[i] = __fdiv_rn(mean[i], static_cast<float>(page_tokens));
  }
  RotateLanesForward<D>(mean, lane);
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kChannelsOfLane<D>; ++i) {
    const int c = kLanes * i + lane;
    const uint16_t word = c < D ? Fp16FromFloat(mean[i]) : uint16_t{0};
    finite = finite && IsFiniteFp16(word);
    if (params != nullptr) params[c] = word;  // with its padding: MeanWords(D) = 32 * lanes' runs
    mean[i] = FloatFromFp16(word);
  }
  return finite;
}

// Rows of 32 tokens, rotated and centred, to shared memory. False: a value the codec refuses.
template <int D>
__device__ bool RotateRows(const uint16_t* rows, int lane, const float (&mean)[kChannelsOfLane<D>],
                           EncodeShared<D>& shared) {
  bool encodable = true;
  for (int t = 0; t < kTileTokens; ++t) {
    float y[kChannelsOfLane<D>];
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      const int c = kLanes * i + lane;
      const uint16_t word = c < D ? rows[int64_t{t} * D + c] : uint16_t{0};
      encodable = encodable && IsEncodable(word);
      y[i] = Bf16ToFloat(word);
    }
    RotateLanesForward<D>(y, lane);
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      if (kLanes * i + lane < D) shared.y[kLanes * i + lane][t] = __fsub_rn(y[i], mean[i]);
    }
  }
  return encodable;
}

// Sums of a token and group, in the order of the recipe.
struct GroupSums {
  float yy = 0, yl8 = 0, ll8 = 0, yl4 = 0, ll4 = 0;

  __device__ void Add(float y, float level8, float level4) {
    yy = __fadd_rn(yy, __fmul_rn(y, y));
    yl8 = __fadd_rn(yl8, __fmul_rn(y, level8));
    ll8 = __fadd_rn(ll8, __fmul_rn(level8, level8));
    yl4 = __fadd_rn(yl4, __fmul_rn(y, level4));
    ll4 = __fadd_rn(ll4, __fmul_rn(level4, level4));
  }
  __device__ static float Scale(bool is_k, float yy, float yl, float ll) {
    return is_k ? __fdiv_rn(yy, fmaxf(yl, 1e-20f)) : __fdiv_rn(yl, ll);
  }
};

// The lane's token: codes replace y in shared memory, scales are stored. False: refused.
template <int D>
__device__ bool QuantizeToken(bool is_k, int token, int page_tokens, const Target& target,
                              EncodeShared<D>& shared) {
  const int lane = token % kTileTokens;
  bool encodable = true;
  for (int g = 0; g < kGroupCount<D>; ++g) {
    float m = 1e-12f;
    for (int c = GroupBegin<D>(g); c < GroupBegin<D>(g + 1); ++c) {
      m = fmaxf(m, fabsf(shared.y[c][lane]));
    }
    encodable = encodable && m <= kEncodeMagnitudeMax;
    const float inv = __fdiv_rn(127.5f, m);
    GroupSums sums;
    for (int c = GroupBegin<D>(g); c < GroupBegin<D>(g + 1); ++c) {
      const float y = shared.y[c][lane];
      const float code = fminf(fmaxf(floorf(__fmul_rn(y, inv)), -128.0f), 127.0f);
      const float level8 = __fadd_rn(code, 0.5f);
      const float level4 = __fadd_rn(floorf(__fmul_rn(code, 0.0625f)), 0.5f);
      sums.Add(y, level8, level4);
      shared.y[c][lane] = __fadd_rn(code, 128.0f);
    }
    const int scale = g * page_tokens + token;
    const float a4 = GroupSums::Scale(is_k, sums.yy, sums.yl4, sums.ll4);
    target.a4[scale] = Fp16FromFloat(a4);
    if (target.stored_a8 != nullptr) {
      const float a8 = GroupSums::Scale(is_k, sums.yy, sums.yl8, sums.ll8);
      target.stored_a8[scale] = Fp16FromFloat(__fmul_rn(16.0f, a8));
    }
  }
  return encodable;
}

struct OctetWords {
  uint32_t hi = 0;
  uint32_t lo = 0;

  __device__ void Put(int element, uint32_t code) {
    const int shift = element % 4 * 8 + element / 4 * 4;
    hi |= code >> 4 << shift;
    lo |= (code & 15) << shift;
  }
};

// Octets of 8 channels of the lane's token.
template <int D>
__device__ void StoreKeyCodes(int block, int lane, const Target& target,
                              const EncodeShared<D>& shared) {
  for (int octet = 0; octet < D / kOctet; ++octet) {
    OctetWords words;
    for (int e = 0; e < kOctet; ++e) {
      words.Put(e, static_cast<uint32_t>(shared.y[kOctet * octet + e][lane]));
    }
    const int64_t word = TileShape<D>::KBlock(block) + octet * kTileTokens + lane;
    target.hi[word] = words.hi;
    if (target.lo != nullptr) target.lo[word] = words.lo;
  }
}

// Octets of 8 tokens of the lane's channels; padding channels hold the codes of zero.
template <int D>
__device__ void StoreValueCodes(int block, int lane, const Target& target,
                                const EncodeShared<D>& shared) {
  for (int i = 0; i < kChannelsOfLane<D>; ++i) {
    const int c = kLanes * i + lane;
    for (int octet = 0; octet < kTileTokens / kOctet; ++octet) {
      OctetWords words;
      for (int e = 0; e < kOctet; ++e) {
        words.Put(e, c < D ? static_cast<uint32_t>(shared.y[c][kOctet * octet + e]) : 128u);
      }
      const int64_t word = TileShape<D>::VBlock(block) + (i * 4 + octet) * 32 + lane;
      target.hi[word] = words.hi;
      if (target.lo != nullptr) target.lo[word] = words.lo;
    }
  }
}

// Grid: blocks of 32 tokens, K and V, tiles.
template <int D>
__global__ void __launch_bounds__(kLanes) EncodeKernel(EncodeParams p) {
  PAGODA_SHARED(EncodeShared<D>, shared);
  const EncodeTileParams tile = p.tiles[blockIdx.z];
  const bool is_k = blockIdx.y == 0;
  const int block = blockIdx.x;
  const int lane = threadIdx.x;
  float mean[kChannelsOfLane<D>] = {};
  bool encodable = true;
  if (is_k) {
    uint16_t* stored = block == 0 ? tile.k_hi_params : nullptr;
    encodable = MeanOfKeys<D>(tile.raw_k, p.page_tokens, lane, mean, stored);
  }
  const uint16_t* rows = (is_k ? tile.raw_k : tile.raw_v) + int64_t{block} * kTileTokens * D;
  encodable = RotateRows<D>(rows, lane, mean, shared) && encodable;
  const Target target = is_k ? Target{tile.k_hi_params + TileShape<D>::kMeanWords, tile.k_lo_params,
                                      tile.k_hi, tile.k_lo}
                             : Target{tile.v_hi_params, tile.v_lo_params, tile.v_hi, tile.v_lo};
  __syncwarp();
  encodable = QuantizeToken<D>(is_k, block * kTileTokens + lane, p.page_tokens, target, shared) &&
              encodable;
  __syncwarp();
  if (is_k) {
    StoreKeyCodes<D>(block, lane, target, shared);
  } else {
    StoreValueCodes<D>(block, lane, target, shared);
  }
  if (!encodable) atomicOr(&p.refused[blockIdx.z], 1u);
}

template <int D>
const char* Launch(const EncodeParams& p, Stream stream) {
  constexpr int kTilesOfLaunch = 32768;  // a grid's third dimension ends at 65535
  for (int first = 0; first < p.tile_count; first += kTilesOfLaunch) {
    EncodeParams part = p;
    part.tiles += first;
    part.refused += first;
    const int left = p.tile_count - first;
    const dim3 grid(p.page_tokens / kTileTokens, 2, left < kTilesOfLaunch ? left : kTilesOfLaunch);
    PAGODA_LAUNCH((EncodeKernel<D>), grid, kLanes, (sizeof(EncodeShared<D>)), stream, part);
    if (const char* error = LaunchError()) return error;
  }
  return nullptr;
}

}  // namespace

const char* LaunchEncode(const EncodeParams& p, Stream stream) {
  return ForHeadDim(p.head_dim, [&](auto dim) { return Launch<dim.value>(p, stream); });
}

}  // namespace pagoda::kernels::cuda
