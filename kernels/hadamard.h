// The rotation of Rotation::kHadamardV1: along head_dim, in blocks of powers of two (the largest
// first: 80 = 64 + 16, 96 = 64 + 32; 64, 128 and 256 whole), with fixed signs.
//
//   forward    y = H (s . x) / sqrt(n)       backward   x = s . (H y) / sqrt(n)     per block of n
//   H          Sylvester's Hadamard matrix, H[i][j] = (-1)^popcount(i & j)
//   s[c]       -1 where bit c % 64 of kHadamardSigns[c / 64] is set, else 1; c = channel of the
//   head
//
// The signs are the first four outputs of splitmix64 seeded with 0x7061676f6461 ("pagoda"). They
// are part of the page format: changing one needs a new Rotation value.
//
// Arithmetic  float: butterflies with strides 1, 2, 4, ..., each (a + b, a - b), then one
//             multiplication by float(1/sqrt(n)). No contraction: bit-exact on every machine.
// Error       |float - exact| <= (log2(n) + 2) * 2^-24 * ||x|| per element, ||x|| over its block: a
//             butterfly stage rounds once, and the partial sums of a stage have norm ||x||.
// Cost        head_dim * log2(head_dim) additions.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/page_layout.h"

namespace pagoda::kernels {

constexpr std::array<uint64_t, 4> kHadamardSigns = {0x70566427ad8acc64, 0xf15b975d26d1e7db,
                                                    0x53dcb0ca5dd29241, 0x9a79b5fb51392aca};

constexpr bool IsFlippedChannel(int32_t channel) {
  return (kHadamardSigns[channel / 64] >> (channel % 64) & 1) != 0;
}

// float(1 / sqrt(size)), size a power of two.
constexpr float HadamardScale(int32_t size) {
  float scale = 1.0f;
  for (; size >= 4; size /= 4) scale *= 0.5f;
  return size == 2 ? scale * 0.70710678118654752440f : scale;
}

// In place, one vector of head_dim floats. REQUIRES: head_dim a multiple of 8 in 16..256.
void RotateForward(float* x, int32_t head_dim);
void RotateBackward(float* y, int32_t head_dim);

// The specification: sums of signed elements in double, no butterflies. `x` and `y` do not overlap.
void RotateForwardRef(const double* x, double* y, int32_t head_dim);
void RotateBackwardRef(const double* y, double* x, int32_t head_dim);

}  // namespace pagoda::kernels
