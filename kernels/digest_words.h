// How the words of a digest round, for processors and GPUs alike: page_score.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/float16.h"
#include "kernels/page_layout.h"

namespace pagoda::kernels {

// The greatest bf16 not above x, and the least not below.
constexpr uint16_t Bf16Below(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool grows = (bits >> 31) != 0 && (bits & 0xffff) != 0;
  return static_cast<uint16_t>((bits >> 16) + (grows ? 1 : 0));
}
constexpr uint16_t Bf16Above(float x) { return static_cast<uint16_t>(Bf16Below(-x) ^ 0x8000); }

// What an extreme of decoded keys is widened by, over (greatest |k| + greatest |mean|): the error
// of DecodeTileCpu(), a row's norm being at most sqrt(head_dim) times its greatest, and one unit
// for the widening itself. Not over-precise: 16 stands for the square root of 256.
constexpr float kDigestSlack = (8 + 5 + 1) * 16 * 0x1p-24f;

// What a sum of head_dim products, rounded in any order, may have lost of the sum of their
// magnitudes.
constexpr float SumSlack(int32_t head_dim) { return static_cast<float>(head_dim + 4) * 0x1p-24f; }

}  // namespace pagoda::kernels
