// Decode attention on tensor cores, for up to 8 query heads of a kv head: one block for a (split,
// kv head, sequence), four warps that share its pages by blocks of 32 tokens.
//
//   logits   q (heads by channels) times K: a lane's words of K are operands as they are loaded,
//            16 bytes of 4 tokens (codes) or 8 channels (rows); it gets tokens 8j to 8j + 7 of
//            head g (lane = 4g + j)
//   outputs  V (channels by tokens) times p: those tokens and that head are what the operand p
//            needs, an octet of V's codes holds those tokens. No shared memory, no shuffle.
//
// Levels are exact in f16; scales multiply the sums of a group of channels (K) and p (V). q goes in
// as two parts, f16 for codes, bf16 for rows; so does p for rows. For codes p * scale is one f16.
// A block's products are summed apart and added in float: what the hardware drops does not grow
// with the sequence.
#pragma once

#include "kernels/cuda/decode_block.cuh"
#include "kernels/cuda/fragments.cuh"

namespace pagoda::kernels::cuda {

// Shared by the block while it reads pages.
template <int D>
struct MmaReading {
  QueryStep levels[kQuerySteps<D>];  // rotated, times kF16Top / unit
  QueryStep rows[kQuerySteps<D>];
  float unit[kMmaHeads];  // of a head's levels
};

// q of the block's heads, times softmax_scale * log2(e), to shared memory in both frames.
template <int D>
__device__ inline void PutQueries(const float* q, int head_count, float scale,
                                  MmaReading<D>& shared) {
  const int lane = threadIdx.x % kLanes;
  for (int h = threadIdx.x / kLanes; h < kMmaHeads; h += kDecodeWarps) {
    float x[kChannelsOfLane<D>];
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      const int c = kLanes * i + lane;
      x[i] = h < head_count && c < D ? q[h * D + c] * scale : 0.0f;
      PutQuery<Element::kBf16>(x[i], h, c, shared.rows);
    }
    RotateLanesForward<D>(x, lane);
    float greatest = 0;
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) greatest = fmaxf(greatest, fabsf(x[i]));
    const Power unit = PowerBelow(MaxOfLanes(greatest));
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      PutQuery<Element::kF16>(x[i] * unit.reciprocal * kF16Top, h, kLanes * i + lane,
                              shared.levels);
    }
    if (lane == 0) shared.unit[h] = unit.value / kF16Top;
  }
}

// The greatest over the four lanes that share a head, or that hold all tokens of a block.
__device__ inline float MaxOfQuad(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// Of a lane: tokens 8j to 8j + 7 of a block, for head g.
using EightTokens = float[kOctet];

// s[i] of four products of 8 heads and 8 tokens, column n of i being token 4n + i: a lane then
// holds tokens 8j + i and 8j + 4 + i, and below them the second part.
using FourProducts = float[4][4];
__device__ inline float LogitOf(const FourProducts& s, int token) {
  return s[token % 4][token / 4] + s[token % 4][2 + token / 4];
}

struct MmaSoftmax {
  float max = -INFINITY;
  float sum = 0;  // of the lane's tokens

  // Logits become p. Returns what older sums are multiplied by.
  __device__ float Take(EightTokens& logit) {
    float greatest = max;
#pragma unroll
    for (int t = 0; t < kOctet; ++t) greatest = fmaxf(greatest, logit[t]);
    greatest = MaxOfQuad(greatest);
    const float keep = exp2f(max - greatest);
    max = greatest;
    sum *= keep;
#pragma unroll
    for (int t = 0; t < kOctet; ++t) {
      logit[t] = exp2f(logit[t] - greatest);
      sum += logit[t];
    }
    return keep;
  }
};

// What a warp keeps.
template <int D>
struct MmaWarp {
  Outputs<D> o;
  MmaSoftmax softmax;
  bool rotated = false;

  __device__ void Turn(bool to_rotated, int lane) {
    if (rotated == to_rotated) return;
    rotated = to_rotated;
    o.Rotate(to_rotated, lane);
  }
};

// What multiplies a lane's outputs: the factor of the head g is in lane 4g.
struct KeepOfHeads {
  float of[2];
  __device__ KeepOfHeads(float keep, int lane)
      : of{__shfl_sync(kAllLanes, keep, lane % 4 * 8),
           __shfl_sync(kAllLanes, keep, lane % 4 * 8 + 4)} {}
  // o * keep + sum * unit
  __device__ void Add(const float (&sum)[4], float unit, float (&o)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = o[i] * of[i % 2] + sum[i] * unit;
  }
};

// Scales of tokens 8j to 8j + 7 in group g.
__device__ inline void LoadScales(const TileCodes& codes, int group, int block, int page_tokens,
                                  float unit, EightTokens& scale) {
  const uint16_t* at =
      codes.scales + group * page_tokens + kTileTokens * block + threadIdx.x % 4 * kOctet;
  const uint4 words = *reinterpret_cast<const uint4*>(at);
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  const float factor = codes.lo == nullptr ? unit : 0.0625f * unit;
#pragma unroll
  for (int t = 0; t < kOctet; ++t) {
    scale[t] = Fp16ToFloat(static_cast<uint16_t>(word[t / 2] >> (16 * (t % 2)))) * factor;
  }
}

// q . mean, of head g in every lane: the mean as all columns of an operand.
template <int D>
__device__ inline float MeanLogit(const uint16_t* mean, const MmaReading<D>& shared) {
  const int lane = threadIdx.x % kLanes;
  float s[4] = {};
#pragma unroll
  for (int r = 0; r < TileShape<D>::kRuns; ++r) {
    uint4 w = {};
    if (32 * r + kOctet * (lane % 4) < D) {
      w = *reinterpret_cast<const uint4*>(mean + 32 * r + kOctet * (lane % 4));
    }
    AddProducts<Element::kF16>(shared.levels[2 * r][lane], __byte_perm(w.x, w.y, 0x5410),
                               __byte_perm(w.x, w.y, 0x7632), s);
    AddProducts<Element::kF16>(shared.levels[2 * r + 1][lane], __byte_perm(w.z, w.w, 0x5410),
                               __byte_perm(w.z, w.w, 0x7632), s);
  }
  return s[0] + s[2];
}

template <int D, bool kLo>
__device__ inline void MmaCodeLogits(const TileCodes& codes, int block, int page_tokens,
                                     const MmaReading<D>& shared, EightTokens& logit) {
  const int lane = threadIdx.x % kLanes;
  const float constant = MeanLogit<D>(codes.mean, shared);
#pragma unroll
  for (int t = 0; t < kOctet; ++t) logit[t] = constant;
  const int64_t words = TileShape<D>::KBlock(block) + lane % 4 * kTileTokens + lane / 4 * 4;
#pragma unroll(D == 256 ? 1 : kGroupCount <D>)
  for (int g = 0; g < kGroupCount<D>; ++g) {
    FourProducts s = {};
#pragma unroll
    for (int r = GroupBegin<D>(g) / 32; 32 * r < GroupBegin<D>(g + 1); ++r) {
      uint4 hi = {};
      uint4 lo = {};
      if (32 * r + kOctet * (lane % 4) < D) {
        const int64_t at = words + r * 4 * kTileTokens;
        hi = *reinterpret_cast<const uint4*>(codes.hi + at);
        if (kLo) lo = *reinterpret_cast<const uint4*>(codes.lo + at);
      }
      const uint32_t hi_of[4] = {hi.x, hi.y, hi.z, hi.w};
      const uint32_t lo_of[4] = {lo.x, lo.y, lo.z, lo.w};
      const uint4 q0 = shared.levels[2 * r][lane];
      const uint4 q1 = shared.levels[2 * r + 1][lane];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t level[4];
        LevelPairs<kLo>(hi_of[i], lo_of[i], level);
        AddProducts<Element::kF16>(q0, level[0], level[1], s[i]);
        AddProducts<Element::kF16>(q1, level[2], level[3], s[i]);
      }
    }
    EightTokens scale;
    LoadScales(codes, g, block, page_tokens, kLevelUnit, scale);
#pragma unroll
    for (int t = 0; t < kOctet; ++t) logit[t] += scale[t] * LogitOf(s, t);
  }
  const float unit = shared.unit[lane / 4];
#pragma unroll
  for (int t = 0; t < kOctet; ++t) logit[t] *= unit;
}

template <int D, bool kLo>
__device__ inline void MmaAddCodeValues(const TileCodes& codes, int block, int begin, int end,
                                        int page_tokens, const EightTokens& p,
                                        const KeepOfHeads& keep, Outputs<D>& o) {
  const int lane = threadIdx.x % kLanes;
  const int64_t words = TileShape<D>::VBlock(block) + lane % 4 * 32 + lane / 4 * 4;
#pragma unroll
  for (int g = 0; g < kGroupCount<D>; ++g) {
    EightTokens w;
    LoadScales(codes, g, block, page_tokens, 1.0f, w);
    float greatest = 0;
#pragma unroll
    for (int t = 0; t < kOctet; ++t) {
      // The scale of a token that is not seen must not decide the unit, nor be NaN times 0.
      const int token = kTileTokens * block + lane % 4 * kOctet + t;
      if (token < begin || token >= end) w[t] = 0;
      greatest = fmaxf(greatest, w[t]);
    }
    const Power unit = PowerBelow(MaxOfQuad(greatest));
#pragma unroll
    for (int t = 0; t < kOctet; ++t) w[t] *= p[t] * (unit.reciprocal * kF16Top);
    const uint32_t b[4] = {PackPair<Element::kF16>(w[0], w[2]), PackPair<Element::kF16>(w[1], w[3]),
                           PackPair<Element::kF16>(w[4], w[6]),
                           PackPair<Element::kF16>(w[5], w[7])};
#pragma unroll
    for (int r = GroupBegin<D>(g) / 32; 32 * r < GroupBegin<D>(g + 1); ++r) {
      const uint4 hi = *reinterpret_cast<const uint4*>(codes.hi + words + r * 4 * 32);
      uint4 lo = {};
      if (kLo) lo = *reinterpret_cast<const uint4*>(codes.lo + words + r * 4 * 32);
      const uint32_t hi_of[4] = {hi.x, hi.y, hi.z, hi.w};
      const uint32_t lo_of[4] = {lo.x, lo.y, lo.z, lo.w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // channels 2i and 2i + 1 of the lane's four
        uint32_t even[4];
        uint32_t odd[4];
        LevelPairs<kLo>(hi_of[2 * i], lo_of[2 * i], even);
        LevelPairs<kLo>(hi_of[2 * i + 1], lo_of[2 * i + 1], odd);
        float sum[4] = {};
        AddProducts<Element::kF16>({even[0], odd[0], even[1], odd[1]}, b[0], b[1], sum);
        AddProducts<Element::kF16>({even[2], odd[2], even[3], odd[3]}, b[2], b[3], sum);
        keep.Add(sum, unit.value * (kLevelUnit / kF16Top), o.at[r][i]);
      }
    }
  }
}

// Tokens begin to end of block `block`, as codes. All lanes of the warp.
template <int D>
__device__ inline void MmaAttendCodes(const TileOfHead<D>& tile, int block, int begin, int end,
                                      const MmaReading<D>& shared, MmaWarp<D>& state) {
  const int lane = threadIdx.x % kLanes;
  const TileCodes k = tile.KeyCodes();
  state.Turn(/*to_rotated=*/true, lane);
  EightTokens p;
  if (k.lo != nullptr) {
    MmaCodeLogits<D, true>(k, block, tile.page_tokens, shared, p);
  } else {
    MmaCodeLogits<D, false>(k, block, tile.page_tokens, shared, p);
  }
#pragma unroll
  for (int t = 0; t < kOctet; ++t) {
    const int token = kTileTokens * block + lane % 4 * kOctet + t;
    if (token < begin || token >= end) p[t] = -INFINITY;
  }
  const KeepOfHeads keep(state.softmax.Take(p), lane);
  const TileCodes v = tile.ValueCodes();
  if (v.lo != nullptr) {
    MmaAddCodeValues<D, true>(v, block, begin, end, tile.page_tokens, p, keep, state.o);
  } else {
    MmaAddCodeValues<D, false>(v, block, begin, end, tile.page_tokens, p, keep, state.o);
  }
}

template <int D>
__device__ inline void MmaRowLogits(const uint16_t* k, int count, const MmaReading<D>& shared,
                                    EightTokens& logit) {
  const int lane = threadIdx.x % kLanes;
  FourProducts s = {};
#pragma unroll(D == 256 ? 2 : TileShape <D>::kRuns)
  for (int r = 0; r < TileShape<D>::kRuns; ++r) {
    const int c = 32 * r + kOctet * (lane % 4);
    const uint4 q0 = shared.rows[2 * r][lane];
    const uint4 q1 = shared.rows[2 * r + 1][lane];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = lane / 4 * 4 + i;
      uint4 w = {};
      if (token < count && c < D) w = *reinterpret_cast<const uint4*>(k + int64_t{token} * D + c);
      AddProducts<Element::kBf16>(q0, w.x, w.y, s[i]);
      AddProducts<Element::kBf16>(q1, w.z, w.w, s[i]);
    }
  }
#pragma unroll
  for (int t = 0; t < kOctet; ++t) logit[t] = LogitOf(s, t);
}

template <int D>
__device__ inline void MmaAddRowValues(const uint16_t* v, int count, const EightTokens& p,
                                       const KeepOfHeads& keep, Outputs<D>& o) {
  const int lane = threadIdx.x % kLanes;
  uint32_t whole[4];
  uint32_t rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    whole[i] = PackPair<Element::kBf16>(p[2 * i], p[2 * i + 1]);
    rest[i] = PackPair<Element::kBf16>(p[2 * i] - Bf16ToFloat(whole[i] & 0xffff),
                                       p[2 * i + 1] - Bf16ToFloat(whole[i] >> 16));
  }
#pragma unroll
  for (int r = 0; r < TileShape<D>::kRuns; ++r) {
    const int c = 32 * r + lane / 4 * 4;
    uint2 row[kOctet];
#pragma unroll
    for (int t = 0; t < kOctet; ++t) {
      const int token = lane % 4 * kOctet + t;
      row[t] = {};
      if (token < count && c < D) {
        row[t] = *reinterpret_cast<const uint2*>(v + int64_t{token} * D + c);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum[4] = {};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint4 a;  // channels 2i and 2i + 1, tokens in pairs
        const auto pair = [&](int t, unsigned half) {
          const uint2 low = row[4 * step + t];
          const uint2 high = row[4 * step + t + 1];
          return __byte_perm(i == 0 ? low.x : low.y, i == 0 ? high.x : high.y, half);
        };
        a.x = pair(0, 0x5410);
        a.y = pair(0, 0x7632);
        a.z = pair(2, 0x5410);
        a.w = pair(2, 0x7632);
        AddProducts<Element::kBf16>(a, whole[2 * step], whole[2 * step + 1], sum);
        AddProducts<Element::kBf16>(a, rest[2 * step], rest[2 * step + 1], sum);
      }
      keep.Add(sum, 1.0f, o.at[r][i]);
    }
  }
}

// `count` rows, at most 32, of bf16. All lanes of the warp.
template <int D>
__device__ inline void MmaAttendRows(const uint16_t* k, const uint16_t* v, int count,
                                     const MmaReading<D>& shared, MmaWarp<D>& state) {
  const int lane = threadIdx.x % kLanes;
  state.Turn(/*to_rotated=*/false, lane);
  EightTokens p;
  MmaRowLogits<D>(k, count, shared, p);
#pragma unroll
  for (int t = 0; t < kOctet; ++t) {
    if (lane % 4 * kOctet + t >= count) p[t] = -INFINITY;
  }
  const KeepOfHeads keep(state.softmax.Take(p), lane);
  MmaAddRowValues<D>(v, count, p, keep, state.o);
}

// The warp's state to shared memory, where its reading was.
template <int D>
__device__ inline void ShareState(MmaWarp<D>& state,
                                  DecodeShared<D, kMmaHeads, MmaReading<D>>& shared) {
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
  state.Turn(/*to_rotated=*/false, lane);
  float sum = state.softmax.sum;
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  __syncthreads();  // queries are read no more: o takes their place
  if (lane % 4 == 0) {
    shared.max[warp][lane / 4] = state.softmax.max;
    shared.sum[warp][lane / 4] = sum;
  }
#pragma unroll
  for (int r = 0; r < TileShape<D>::kRuns; ++r) {
    const int c = 32 * r + lane / 4 * 4;
    if (c >= D) continue;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      *reinterpret_cast<float4*>(&shared.o[warp][lane % 4 * 2 + b][c]) = {
          state.o.Of(r, 0, b), state.o.Of(r, 1, b), state.o.Of(r, 2, b), state.o.Of(r, 3, b)};
    }
  }
  __syncthreads();
}

template <int D>
__global__ void __launch_bounds__(kDecodeWarps* kLanes, kBlocksAsked<D == 80>)
    DecodeMmaKernel(DecodeParams p) {
  using Shared = DecodeShared<D, kMmaHeads, MmaReading<D>>;
  PAGODA_SHARED(Shared, shared);
  const DecodeHeads heads = HeadsOfBlock<kMmaHeads>(p);
  constexpr float kLog2E = 1.44269504088896340736f;
  PutQueries<D>(p.q + heads.first_row * D, heads.count, p.softmax_scale * kLog2E, shared.reading);
  __syncthreads();
  MmaWarp<D> state;
  VisitTokens<D>(
      p, heads.kv_head,
      [&](const uint16_t* k, const uint16_t* v, int count) {
        MmaAttendRows<D>(k, v, count, shared.reading, state);
      },
      [&](const TileOfHead<D>& tile, int block, int begin, int end) {
        MmaAttendCodes<D>(tile, block, begin, end, shared.reading, state);
      });
  ShareState<D>(state, shared);
  WriteStates<D>(shared, heads, p);
}

}  // namespace pagoda::kernels::cuda
