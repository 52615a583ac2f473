// Which planes a page has, in one word: small enough for every directory entry, and free of any
// assumption about how many bits a code has or how they are split.
//
//   bit 0..7    bit i of the embedded code is present for K
//   bit 8..15   bit i of the embedded code is present for V
//   bit 16+k    a plane of PlaneKind k is present
#pragma once

#include <cstdint>
#include <vector>

#include "storage/base/page_header.h"

namespace pagoda {

using PlaneMask = uint32_t;

constexpr PlaneMask PlaneMaskOfKind(PlaneKind kind) {
  return PlaneMask{1} << (16 + static_cast<int>(kind));
}

inline PlaneMask PlaneMaskOf(const std::vector<PlaneEntry>& planes) {
  PlaneMask mask = 0;
  for (const PlaneEntry& plane : planes) {
    mask |= PlaneMaskOfKind(plane.kind);
    if (plane.kind != PlaneKind::kCodes || plane.bit_begin + plane.bit_count > 8) continue;
    const PlaneMask bits = ((PlaneMask{1} << plane.bit_count) - 1) << plane.bit_begin;
    if (plane.tensor != Tensor::kV) mask |= bits;
    if (plane.tensor != Tensor::kK) mask |= bits << 8;
  }
  return mask;
}

}  // namespace pagoda
