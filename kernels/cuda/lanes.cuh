// A vector of head_dim floats across the lanes of a warp: lane l holds channels l, 32 + l, 64 + l,
// ... (lanes past head_dim hold 0). The rotation of hadamard.h then needs shuffles and additions
// alone, in the order of the specification: bit for bit RotateForward and RotateBackward.
//
// Limits  D a multiple of 16 in 16..256
#pragma once

#include "kernels/cuda/simt.h"
#include "kernels/float16.h"
#include "kernels/hadamard.h"
#include "kernels/page_layout.h"

namespace pagoda::kernels::cuda {

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = ~0u;

template <int D>
constexpr int kChannelsOfLane = (D + kLanes - 1) / kLanes;

// GroupsOf(D), in a form that folds in device code.
template <int D>
constexpr int kGroupCount = GroupsOf(D).count;

template <int D>
__host__ __device__ constexpr int GroupBegin(int group) {
  constexpr int kWhole = D / 64;
  int begin = group < kWhole ? 64 * group : 64 * kWhole;
  int left = group - kWhole;
  for (int block = 32; block >= kOctet; block /= 2) {
    if ((D & block) != 0 && left-- > 0) begin += block;
  }
  return begin;
}

template <int D>
constexpr bool GroupsAgree() {
  constexpr ChannelGroups kGroups = GroupsOf(D);
  for (int g = 0; g <= kGroups.count; ++g) {
    if (GroupBegin<D>(g) != kGroups.begin[g]) return false;
  }
  return true;
}

// Group of a lane's i-th channel. A run of 32 channels never spans two groups.
template <int D>
__host__ __device__ constexpr int GroupOfRun(int i) {
  static_assert(D % 16 == 0 && D % 64 != 48 && GroupsAgree<D>());
  int group = 0;
  while (32 * i >= GroupBegin<D>(group + 1)) ++group;
  return group;
}

// Size of the transform's block that has the channel; 0 past the last.
template <int D>
__host__ __device__ constexpr int TransformSize(int channel) {
  int begin = 0;
  for (int size = kHeadDimMax; size >= kOctet; size /= 2) {
    if ((D & size) == 0) continue;
    begin += size;
    if (channel < begin) return size;
  }
  return 0;
}

__device__ inline bool IsFlipped(int channel) {
  constexpr uint64_t kSigns0 = kHadamardSigns[0];
  constexpr uint64_t kSigns1 = kHadamardSigns[1];
  constexpr uint64_t kSigns2 = kHadamardSigns[2];
  constexpr uint64_t kSigns3 = kHadamardSigns[3];
  const uint64_t signs = channel < 64    ? kSigns0
                         : channel < 128 ? kSigns1
                         : channel < 192 ? kSigns2
                                         : kSigns3;
  return (signs >> (channel % 64) & 1) != 0;
}

template <int D>
__device__ inline void FlipLanes(float (&x)[kChannelsOfLane<D>], int lane) {
#pragma unroll
  for (int i = 0; i < kChannelsOfLane<D>; ++i) {
    if (IsFlipped(kLanes * i + lane)) x[i] = -x[i];
  }
}

template <int D>
__device__ inline void TransformLanes(float (&x)[kChannelsOfLane<D>], int lane) {
  constexpr int kCount = kChannelsOfLane<D>;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {  // strides within a run of 32 channels: between lanes
    const int size = TransformSize<D>(kLanes * i + lane);
#pragma unroll
    for (int stride = 1; stride < kLanes; stride *= 2) {
      if (stride >= TransformSize<D>(kLanes * i)) break;  // no lane of this run goes on
      const float other = __shfl_xor_sync(kAllLanes, x[i], stride);
      const float sum = (lane & stride) != 0 ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
      if (stride < size) x[i] = sum;
    }
  }
#pragma unroll
  for (int stride = 1; stride < kCount; stride *= 2) {  // from 32 channels on: between registers
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((i & stride) != 0 || kLanes * stride >= TransformSize<D>(kLanes * i)) continue;
      const float a = x[i];
      const float b = x[i + stride];
      x[i] = __fadd_rn(a, b);
      x[i + stride] = __fsub_rn(a, b);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int size = TransformSize<D>(kLanes * i + lane);
    x[i] = __fmul_rn(x[i], size == 0 ? 0.0f : HadamardScale(size));
  }
}

// x, as if computed here: what depends on it is not moved out of a loop, where it would take
// registers for the whole of it.
__device__ inline int ComputedHere(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("mov.s32 %0, %0;" : "+r"(x));
#endif
  return x;
}

template <int D>
__device__ inline void RotateLanesForward(float (&x)[kChannelsOfLane<D>], int lane) {
  FlipLanes<D>(x, lane);
  TransformLanes<D>(x, lane);
}

template <int D>
__device__ inline void RotateLanesBackward(float (&x)[kChannelsOfLane<D>], int lane) {
  TransformLanes<D>(x, lane);
  FlipLanes<D>(x, lane);
}

// Every lane gets the sum, or the greatest, of all.
__device__ inline float SumOfLanes(float x) {
#pragma unroll
  for (int other = 1; other < kLanes; other *= 2) x += __shfl_xor_sync(kAllLanes, x, other);
  return x;
}
__device__ inline float MaxOfLanes(float x) {
#pragma unroll
  for (int other = 1; other < kLanes; other *= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, other));
  }
  return x;
}

}  // namespace pagoda::kernels::cuda
