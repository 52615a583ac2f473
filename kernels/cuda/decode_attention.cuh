// Decode attention without tensor cores: one block for a (split, kv head, sequence), four warps
// that share its pages by blocks of 32 tokens.
//
//   K    lane = token: a row of 32 words is one coalesced load, the scale multiplies the lane's sum
//   V    lane = channel: p * scale goes through shared memory, no sum crosses lanes
//   rows (raw16, sinks) K by 8 lanes a token, V lane = channel
//
// Codes add to an output in the rotated frame, rows to one that is not. A warp keeps one output and
// turns it, by shuffles, when the kind of its next tokens differs: rare, as pages of a kind come
// in runs.
#pragma once

#include "kernels/cuda/decode_block.cuh"

namespace pagoda::kernels::cuda {

// Loads of a lane that wait for memory together. With several heads arithmetic takes the time, and
// more would cost registers.
template <int H>
constexpr int kOctetsInFlight = H == 1 ? 32 : 4;

// Shared by the block while it reads pages.
template <int D, int H>
struct DecodeReading {
  float q[H][D];  // times softmax_scale * log2(e)
  float q_rotated[H][D];
  float weights[kDecodeWarps][H][kGroupCount<D>][kTileTokens];  // p, times the scale of V
};

// What a warp keeps of each of H query heads.
template <int D, int H>
struct DecodeWarp {
  float o[H][kChannelsOfLane<D>] = {};
  float max[H];
  float sum[H] = {};  // of the lane's tokens
  bool rotated = false;

  __device__ DecodeWarp() {
#pragma unroll
    for (int h = 0; h < H; ++h) max[h] = -INFINITY;
  }

  __device__ void Turn(bool to_rotated, int lane) {
    if (rotated == to_rotated) return;
    rotated = to_rotated;
    lane = ComputedHere(lane);
#pragma unroll
    for (int h = 0; h < H; ++h) {
      if (to_rotated) {
        RotateLanesForward<D>(o[h], lane);
      } else {
        RotateLanesBackward<D>(o[h], lane);
      }
    }
  }

  // Takes the logits of 32 tokens, one a lane (-inf where masked, not all of them); gives p.
  __device__ void Softmax(float (&logit)[H]) {
#pragma unroll
    for (int h = 0; h < H; ++h) {
      const float greatest = fmaxf(max[h], MaxOfLanes(logit[h]));
      const float keep = exp2f(max[h] - greatest);
      max[h] = greatest;
      logit[h] = exp2f(logit[h] - greatest);
      sum[h] = sum[h] * keep + logit[h];
#pragma unroll
      for (int i = 0; i < kChannelsOfLane<D>; ++i) o[h][i] *= keep;
    }
  }
};

// q of the block's heads to shared memory, in both frames. Warps share the heads.
template <int D, int H>
__device__ inline void LoadQueries(const float* q, int head_count, float scale,
                                   DecodeReading<D, H>& shared) {
  const int lane = threadIdx.x % kLanes;
  for (int h = threadIdx.x / kLanes; h < H; h += kDecodeWarps) {
    float x[kChannelsOfLane<D>];
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      const int c = kLanes * i + lane;
      x[i] = h < head_count && c < D ? q[h * D + c] * scale : 0.0f;
      if (c < D) shared.q[h][c] = x[i];
    }
    RotateLanesForward<D>(x, lane);
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      if (kLanes * i + lane < D) shared.q_rotated[h][kLanes * i + lane] = x[i];
    }
  }
}

// sum over the octet's channels of q and level, added to `sum` of each head.
template <int D, int H>
__device__ inline void DotOctet(const float (&q)[H][D], int octet, const float (&level)[kOctet],
                                float (&sum)[H]) {
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const float4 a = *reinterpret_cast<const float4*>(&q[h][kOctet * octet]);
    const float4 b = *reinterpret_cast<const float4*>(&q[h][kOctet * octet + 4]);
    sum[h] += a.x * level[0] + a.y * level[1] + a.z * level[2] + a.w * level[3] + b.x * level[4] +
              b.y * level[5] + b.z * level[6] + b.w * level[7];
  }
}

// Logits of the 32 tokens of a block of codes, one a lane.
template <int D, int H, bool kLo>
__device__ inline void CodeLogits(const TileCodes& codes, int block, int page_tokens,
                                  const float (&q)[H][D], float (&logit)[H]) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int h = 0; h < H; ++h) {
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      const int c = kLanes * i + lane;
      if (c < D) dot += q[h][c] * Fp16ToFloat(codes.mean[c]);
    }
    logit[h] = SumOfLanes(dot);
  }
  const int64_t row = TileShape<D>::KBlock(block) + lane;
#pragma unroll
  for (int g = 0; g < kGroupCount<D>; ++g) {
    float sum[H] = {};
#pragma unroll(kOctetsInFlight <H>)
    for (int octet = GroupBegin<D>(g) / kOctet; octet < GroupBegin<D>(g + 1) / kOctet; ++octet) {
      const int64_t word = row + octet * kTileTokens;
      float level[kOctet];
      Levels<kLo>(codes.hi[word], kLo ? codes.lo[word] : 0, level);
      DotOctet<D, H>(q, octet, level, sum);
    }
    const float scale = codes.Scale(g * page_tokens + kTileTokens * block + lane);
#pragma unroll
    for (int h = 0; h < H; ++h) logit[h] += scale * sum[h];
  }
}

// Adds weights * V of a block of codes to the output.
template <int D, int H, bool kLo>
__device__ inline void AddCodeValues(const TileCodes& codes, int block,
                                     const float (&weights)[H][kGroupCount<D>][kTileTokens],
                                     float (&o)[H][kChannelsOfLane<D>]) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < kChannelsOfLane<D>; ++i) {
    const int64_t row = TileShape<D>::VBlock(block) + i * 4 * 32 + lane;
#pragma unroll(H == 8 ? 1 : 4)
    for (int octet = 0; octet < kTileTokens / kOctet; ++octet) {
      const int64_t word = row + octet * 32;
      float level[kOctet];
      Levels<kLo>(codes.hi[word], kLo ? codes.lo[word] : 0, level);
#pragma unroll
      for (int h = 0; h < H; ++h) {
        const float* w = &weights[h][GroupOfRun<D>(i)][kOctet * octet];
        const float4 a = *reinterpret_cast<const float4*>(w);
        const float4 b = *reinterpret_cast<const float4*>(w + 4);
        o[h][i] += a.x * level[0] + a.y * level[1] + a.z * level[2] + a.w * level[3] +
                   b.x * level[4] + b.y * level[5] + b.z * level[6] + b.w * level[7];
      }
    }
  }
}

// Tokens begin to end of block `block`, as codes. All lanes of the warp.
template <int D, int H>
__device__ inline void AttendCodes(const TileOfHead<D>& tile, int block, int begin, int end,
                                   DecodeReading<D, H>& shared, DecodeWarp<D, H>& state) {
  const int lane = threadIdx.x % kLanes;
  auto& weights = shared.weights[threadIdx.x / kLanes];
  const TileCodes k = tile.KeyCodes();
  state.Turn(/*to_rotated=*/true, lane);
  float p[H];
  if (k.lo != nullptr) {
    CodeLogits<D, H, true>(k, block, tile.page_tokens, shared.q_rotated, p);
  } else {
    CodeLogits<D, H, false>(k, block, tile.page_tokens, shared.q_rotated, p);
  }
  const int token = kTileTokens * block + lane;
  if (token < begin || token >= end) {
#pragma unroll
    for (int h = 0; h < H; ++h) p[h] = -INFINITY;
  }
  state.Softmax(p);
  const TileCodes v = tile.ValueCodes();
#pragma unroll
  for (int g = 0; g < kGroupCount<D>; ++g) {
    const float scale = v.Scale(g * tile.page_tokens + token);
#pragma unroll
    for (int h = 0; h < H; ++h) weights[h][g][lane] = p[h] * scale;
  }
  __syncwarp();
  if (v.lo != nullptr) {
    AddCodeValues<D, H, true>(v, block, weights, state.o);
  } else {
    AddCodeValues<D, H, false>(v, block, weights, state.o);
  }
  __syncwarp();  // before the next block's weights
}

// Logits of `count` rows, to weights[h][0][row]. 8 lanes a row, 4 rows at a time.
template <int D, int H>
__device__ inline void RowLogits(const uint16_t* k, int count, const float (&q)[H][D],
                                 float (&weights)[H][kGroupCount<D>][kTileTokens]) {
  const int lane = threadIdx.x % kLanes;
  for (int first = 0; first < count; first += kLanes / 8) {
    const int row = first + lane / 8;
    float sum[H] = {};
    if (row < count) {
#pragma unroll
      for (int i = 0; i < (D / kOctet + 7) / 8; ++i) {
        const int octet = 8 * i + lane % 8;
        if (octet >= D / kOctet) continue;
        const uint4 w = *reinterpret_cast<const uint4*>(k + int64_t{row} * D + kOctet * octet);
        const float x[kOctet] = {Bf16ToFloat(w.x), __uint_as_float(w.x & 0xffff0000u),
                                 Bf16ToFloat(w.y), __uint_as_float(w.y & 0xffff0000u),
                                 Bf16ToFloat(w.z), __uint_as_float(w.z & 0xffff0000u),
                                 Bf16ToFloat(w.w), __uint_as_float(w.w & 0xffff0000u)};
        DotOctet<D, H>(q, octet, x, sum);
      }
    }
#pragma unroll
    for (int h = 0; h < H; ++h) {
#pragma unroll
      for (int other = 1; other < 8; other *= 2) {
        sum[h] += __shfl_xor_sync(kAllLanes, sum[h], other);
      }
      if (lane % 8 == 0 && row < count) weights[h][0][row] = sum[h];
    }
  }
}

// `count` rows, at most 32, of bf16. All lanes of the warp.
template <int D, int H>
__device__ inline void AttendRows(const uint16_t* k, const uint16_t* v, int count,
                                  DecodeReading<D, H>& shared, DecodeWarp<D, H>& state) {
  const int lane = threadIdx.x % kLanes;
  auto& weights = shared.weights[threadIdx.x / kLanes];
  state.Turn(/*to_rotated=*/false, lane);
  RowLogits<D, H>(k, count, shared.q, weights);
  __syncwarp();
  float p[H];
#pragma unroll
  for (int h = 0; h < H; ++h) p[h] = lane < count ? weights[h][0][lane] : -INFINITY;
  state.Softmax(p);
#pragma unroll
  for (int h = 0; h < H; ++h) weights[h][0][lane] = p[h];  // read above by this lane alone
  __syncwarp();
  for (int row = 0; row < count; ++row) {
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      const int c = kLanes * i + lane;
      const float x = c < D ? Bf16ToFloat(v[int64_t{row} * D + c]) : 0.0f;
#pragma unroll
      for (int h = 0; h < H; ++h) state.o[h][i] += weights[h][0][row] * x;
    }
  }
  __syncwarp();  // before the next block's weights
}

// The warp's state to shared memory, where its reading was.
template <int D, int H>
__device__ inline void ShareState(DecodeWarp<D, H>& state,
                                  DecodeShared<D, H, DecodeReading<D, H>>& shared) {
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
  state.Turn(/*to_rotated=*/false, lane);
  __syncthreads();  // weights are read no more: o takes their place
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const float sum = SumOfLanes(state.sum[h]);
    if (lane == 0) {
      shared.max[warp][h] = state.max[h];
      shared.sum[warp][h] = sum;
    }
#pragma unroll
    for (int i = 0; i < kChannelsOfLane<D>; ++i) {
      if (kLanes * i + lane < D) shared.o[warp][h][kLanes * i + lane] = state.o[h][i];
    }
  }
  __syncthreads();
}

template <int D, int H>
__global__ void __launch_bounds__(kDecodeWarps* kLanes, kBlocksAsked<(H > 1)>)
    DecodeKernel(DecodeParams p) {
  using Shared = DecodeShared<D, H, DecodeReading<D, H>>;
  PAGODA_SHARED(Shared, shared);
  const DecodeHeads heads = HeadsOfBlock<H>(p);
  constexpr float kLog2E = 1.44269504088896340736f;
  LoadQueries<D, H>(p.q + heads.first_row * D, heads.count, p.softmax_scale * kLog2E,
                    shared.reading);
  __syncthreads();
  DecodeWarp<D, H> state;
  VisitTokens<D>(
      p, heads.kv_head,
      [&](const uint16_t* k, const uint16_t* v, int count) {
        AttendRows<D, H>(k, v, count, shared.reading, state);
      },
      [&](const TileOfHead<D>& tile, int block, int begin, int end) {
        AttendCodes<D, H>(tile, block, begin, end, shared.reading, state);
      });
  ShareState<D, H>(state, shared);
  WriteStates<D, H>(shared, heads, p);
}

}  // namespace pagoda::kernels::cuda
