// Tensor cores: one operation on fragments, and the words that go into it. On a GPU it is PTX's
// mma.sync m16n8k16; on the host the same lanes hold the same elements.
//
//   d[16][8] = a[16][16] * b[16][8] + d      a, b 16-bit floats, d float
//
//   lane 4g + j holds, two elements a word, the lower index in the low half:
//     a[0]  row g      k 2j, 2j + 1        a[2]  row g      k 2j + 8, 2j + 9
//     a[1]  row g + 8  k 2j, 2j + 1        a[3]  row g + 8  k 2j + 8, 2j + 9
//     b[0]  k 2j, 2j + 1  column g         b[1]  k 2j + 8, 2j + 9  column g
//     d[0], d[1]  row g  columns 2j, 2j + 1           d[2], d[3]  row g + 8
//
// A sum over k may take its elements in any order, as long as a and b agree: operands whose lanes
// hold neighbours in memory need no shuffle.
//
// Rounding  products are exact; sums have at least the precision of float, in an order that the
//           hardware chooses, and may truncate. The host adds in the order of k, rounding each sum.
#pragma once

#include "kernels/cuda/codes.cuh"

namespace pagoda::kernels::cuda {

enum class Element { kF16, kBf16 };

// Two floats, rounded to nearest, as the halves of a word.
template <Element kElement>
__device__ inline uint32_t PackPair(float low, float high) {
#if defined(__CUDA_ARCH__)
  if constexpr (kElement == Element::kF16) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
#else
  if constexpr (kElement == Element::kF16) {
    return uint32_t{Fp16FromFloat(high)} << 16 | Fp16FromFloat(low);
  } else {
    return uint32_t{Bf16FromFloat(high)} << 16 | Bf16FromFloat(low);
  }
#endif
}

template <Element kElement>
__device__ inline float FloatOf(uint16_t word) {
  return kElement == Element::kF16 ? Fp16ToFloat(word) : Bf16ToFloat(word);
}

// x * scale + addend of both f16 halves. REQUIRES: the result is exact in f16.
__device__ inline uint32_t ScaleAndAddF16(uint32_t x, uint32_t scale, uint32_t addend) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(scale), "r"(addend));
  return result;
#else
  const auto half = [&](int shift) {
    const auto of = [&](uint32_t w) { return FloatFromFp16(static_cast<uint16_t>(w >> shift)); };
    return of(x) * of(scale) + of(addend);
  };
  return PackPair<Element::kF16>(half(0), half(16));
#endif
}

#if !defined(__CUDACC__)
template <Element kElement>
void MmaOnHost(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], unsigned line) {
  simt::Payload mine{};
  std::memcpy(mine.words, a, sizeof(a));
  std::memcpy(mine.words + 2, b, sizeof(b));
  const simt::Payload* all =
      simt::WarpExchange(~0u, mine, simt::SiteOf(simt::kMma, line), /*orders_memory=*/false);
  const auto element = [&](int lane, int reg, int k) {
    const uint64_t word = all[lane].words[reg / 2] >> (32 * (reg % 2) + 16 * (k % 2));
    return FloatOf<kElement>(static_cast<uint16_t>(word));
  };
  const int g = static_cast<int>(threadIdx.x) % warpSize / 4;
  const int j = static_cast<int>(threadIdx.x) % 4;
  for (int k = 0; k < 16; ++k) {
    const int lane = k % 8 / 2;  // of those that hold this k
    for (int i = 0; i < 4; ++i) {
      const float x = element(4 * g + lane, i / 2 + k / 8 * 2, k);
      const float y = element(4 * (2 * j + i % 2) + lane, 4 + k / 8, k);
      d[i] += x * y;
    }
  }
}
#endif

// All lanes of the warp.
template <Element kElement>
__device__ inline void Mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]
#if !defined(__CUDACC__)
                           ,
                           unsigned line = __builtin_LINE()
#endif
) {
#if defined(__CUDA_ARCH__)
  if constexpr (kElement == Element::kF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#elif !defined(__CUDACC__)
  MmaOnHost<kElement>(d, a, b, line);
#endif
}

}  // namespace pagoda::kernels::cuda
