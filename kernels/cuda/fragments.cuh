// What tensor cores take and give, in the forms that decoding needs (mma.cuh has the operation).
//
//   queries  8 heads as rows 0-7 of a[16][k]; rows 8-15 hold what rounding left of the same heads,
//            so that one operation multiplies both parts
//   outputs  transposed: 16 channels by 8 heads. Lane 4g + j holds channels 32r + 4g to + 3 of
//            heads 2j and 2j + 1: what it read of V is what it keeps.
//
// Channels enter a sum over k in the order of an octet's nibbles (levels) or of memory (rows).
#pragma once

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tile.cuh"

namespace pagoda::kernels::cuda {

constexpr int kMmaHeads = 8;

// A power of two and its reciprocal.
struct Power {
  float value;
  float reciprocal;
};
// The greatest power not above x, kept within 2^-100 and 2^100.
__device__ inline Power PowerBelow(float x) {
  const uint32_t bits = __float_as_uint(fminf(fmaxf(x, 0x1p-100f), 0x1p100f)) & 0x7f800000u;
  return {__uint_as_float(bits), __uint_as_float(0x7f000000u - bits)};
}

// f16 operands are scaled to stay below 2^15: 28 powers of two lie between the greatest and the
// least that keeps all its bits.
constexpr float kF16Top = 0x1p14f;

// Eight levels of an octet, times 2^-9, as f16 pairs of elements (0, 2), (1, 3), (4, 6), (5, 7).
// Codes as they stand in a word are counts of f16's least subnormal: one multiplication and
// addition makes them exact levels.
constexpr float kLevelUnit = 512.0f;
template <bool kLo>
__device__ inline void LevelPairs(uint32_t hi, uint32_t lo, uint32_t (&pair)[4]) {
  constexpr uint32_t kTwice2To15 = 0x78007800;
  if constexpr (kLo) {
    constexpr uint32_t kCentre = 0xb3f8b3f8;                            // -127.5 * 2^-9
    const uint32_t first = (hi << 4 & 0xf0f0f0f0) | (lo & 0x0f0f0f0f);  // elements 0 to 3
    const uint32_t second = (hi & 0xf0f0f0f0) | (lo >> 4 & 0x0f0f0f0f);
    pair[0] = ScaleAndAddF16(first & 0x00ff00ff, kTwice2To15, kCentre);
    pair[1] = ScaleAndAddF16(first >> 8 & 0x00ff00ff, kTwice2To15, kCentre);
    pair[2] = ScaleAndAddF16(second & 0x00ff00ff, kTwice2To15, kCentre);
    pair[3] = ScaleAndAddF16(second >> 8 & 0x00ff00ff, kTwice2To15, kCentre);
  } else {
    constexpr uint32_t kTwice2To11 = 0x68006800;  // for nibbles that stand four bits higher
    constexpr uint32_t kCentre = 0xa380a380;      // -7.5 * 2^-9
    const uint32_t odd = hi >> 8;
    pair[0] = ScaleAndAddF16(hi & 0x000f000f, kTwice2To15, kCentre);
    pair[1] = ScaleAndAddF16(odd & 0x000f000f, kTwice2To15, kCentre);
    pair[2] = ScaleAndAddF16(hi & 0x00f000f0, kTwice2To11, kCentre);
    pair[3] = ScaleAndAddF16(odd & 0x00f000f0, kTwice2To11, kCentre);
  }
}

// Of an operand a: the word of every lane that a step of 16 k takes.
using QueryStep = uint4[kLanes];
template <int D>
constexpr int kQuerySteps = 2 * TileShape<D>::kRuns;

// Writes channel c of a head, of levels or of rows, in two parts.
template <Element kElement>
__device__ inline void PutQuery(float x, int head, int c, QueryStep* steps) {
  const float whole = FloatOf<kElement>(static_cast<uint16_t>(PackPair<kElement>(x, 0.0f)));
  const uint32_t parts = PackPair<kElement>(x, x - whole);
  const int i = c % 4;
  const bool levels = kElement == Element::kF16;
  const int pair = levels ? i % 2 : i / 2;
  const int half = levels ? i / 2 : i % 2;
  uint4& words = steps[c / 4 % 2 + c / 32 * 2][4 * head + c / 8 % 4];
  auto* const at = reinterpret_cast<uint16_t*>(&words) + 4 * pair + half;
  at[0] = static_cast<uint16_t>(parts);
  at[2] = static_cast<uint16_t>(parts >> 16);
}

// s += q * b, b of the step's 16 channels and 8 tokens.
template <Element kElement>
__device__ inline void AddProducts(const uint4& q, uint32_t b0, uint32_t b1, float (&s)[4]) {
  const uint32_t a[4] = {q.x, q.y, q.z, q.w};
  const uint32_t b[2] = {b0, b1};
  Mma<kElement>(s, a, b);
}

// A lane's outputs: channel 32r + 4g + i of head 2j + b at [r][i / 2][2 * (i % 2) + b].
template <int D>
struct Outputs {
  static constexpr int kRuns = TileShape<D>::kRuns;
  float at[kRuns][2][4] = {};

  __device__ float& Of(int run, int i, int b) { return at[run][i / 2][2 * (i % 2) + b]; }

  // hadamard.h, each way. All lanes of the warp.
  __device__ void Rotate(bool forward, int lane) {
    lane = ComputedHere(lane);
    if (forward) Flip(lane);
    Transform(lane);
    if (!forward) Flip(lane);
  }

 private:
  __device__ static int FirstChannel(int run, int lane) { return 32 * run + lane / 4 * 4; }

  __device__ void Flip(int lane) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!IsFlipped(FirstChannel(r, lane) + i)) continue;
        Of(r, i, 0) = -Of(r, i, 0);
        Of(r, i, 1) = -Of(r, i, 1);
      }
    }
  }

  __device__ static void Butterfly(float& a, float& b) {
    const float sum = a + b;
    b = a - b;
    a = sum;
  }

  __device__ void Transform(int lane) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        Butterfly(Of(r, 0, b), Of(r, 1, b));
        Butterfly(Of(r, 2, b), Of(r, 3, b));
        Butterfly(Of(r, 0, b), Of(r, 2, b));
        Butterfly(Of(r, 1, b), Of(r, 3, b));
#pragma unroll
        for (int i = 0; i < 4; ++i) TransformAcross(Of(r, i, b), r, lane);
      }
#pragma unroll
      for (int stride = 1; stride < kRuns; stride *= 2) {
#pragma unroll
        for (int r = 0; r < kRuns; ++r) {
          if ((r & stride) != 0 || 32 * stride >= TransformSize<D>(32 * r)) continue;
#pragma unroll
          for (int i = 0; i < 4; ++i) Butterfly(Of(r, i, b), Of(r + stride, i, b));
        }
      }
    }
  }

  // Strides 4 to 16, between lanes, and the factor of the whole.
  __device__ static void TransformAcross(float& x, int run, int lane) {
    const int size = TransformSize<D>(FirstChannel(run, lane));
#pragma unroll
    for (int stride = 4; stride < kLanes; stride *= 2) {
      if (stride >= TransformSize<D>(32 * run)) break;  // no lane of this run goes on
      const float other = __shfl_xor_sync(kAllLanes, x, stride);
      const float result = (lane & stride) != 0 ? other - x : x + other;
      if (stride < size) x = result;
    }
    x *= size == 0 ? 0.0f : HadamardScale(size);
  }
};

}  // namespace pagoda::kernels::cuda
