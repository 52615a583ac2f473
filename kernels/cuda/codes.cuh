// Values in registers from what pages store: bf16 and fp16 words, and octets of 4-bit codes.
//
// A level is exact and costs two instructions: a byte permutation puts the code behind the mantissa
// of 2^15, whose last bit is 2^-8, and one subtraction takes 2^15 and the centre off again.
#pragma once

#include "kernels/cuda/simt.h"
#include "kernels/float16.h"
#include "kernels/page_layout.h"

namespace pagoda::kernels::cuda {

__device__ inline float Bf16ToFloat(uint32_t word) { return __uint_as_float(word << 16); }

__device__ inline float Fp16ToFloat(uint16_t word) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(word));
#else
  return FloatFromFp16(word);
#endif
}

// code of byte i, minus the centre
template <int kByte>
__device__ inline float LevelOfByte(uint32_t bytes, float base_and_centre) {
  constexpr uint32_t kBase = 0x47000000;  // 2^15 as float: bytes 4 to 7 of the permutation
  const uint32_t bits = __byte_perm(bytes, kBase, 0x7504 | kByte << 4);
  return __fsub_rn(__uint_as_float(bits), base_and_centre);
}

// Levels of the octet's elements 0 to 7: hi - 7.5, or 16 * hi + lo - 127.5 with kLo.
template <bool kLo>
__device__ inline void Levels(uint32_t hi, uint32_t lo, float (&level)[kOctet]) {
  uint32_t first = hi & 0x0f0f0f0f;  // elements 0 to 3 as bytes
  uint32_t second = hi >> 4 & 0x0f0f0f0f;
  if constexpr (kLo) {
    first = first << 4 | (lo & 0x0f0f0f0f);
    second = (hi & 0xf0f0f0f0) | (lo >> 4 & 0x0f0f0f0f);
  }
  constexpr float kBaseAndCentre = 32768.0f + (kLo ? 127.5f : 7.5f);
  level[0] = LevelOfByte<0>(first, kBaseAndCentre);
  level[1] = LevelOfByte<1>(first, kBaseAndCentre);
  level[2] = LevelOfByte<2>(first, kBaseAndCentre);
  level[3] = LevelOfByte<3>(first, kBaseAndCentre);
  level[4] = LevelOfByte<0>(second, kBaseAndCentre);
  level[5] = LevelOfByte<1>(second, kBaseAndCentre);
  level[6] = LevelOfByte<2>(second, kBaseAndCentre);
  level[7] = LevelOfByte<3>(second, kBaseAndCentre);
}

}  // namespace pagoda::kernels::cuda
