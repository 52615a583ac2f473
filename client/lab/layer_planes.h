// Which lo planes each layer of a q8 page is read with: what a layer profile decides, applied on
// the way to the product's kernel. Nothing is encoded again.
//
// Threads    pure functions
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention.h"

namespace pagoda::lab {

struct LayerPlanes {
  bool k_lo = false;
  bool v_lo = false;
  bool operator==(const LayerPlanes&) const = default;
};

// AttentionCpu over the pages, encoded ones with the planes of `layers[layer]`; for
// ForwardPass::set_attention(), with a q8 sequence.
absl::Status AttendWithPlanes(const std::vector<LayerPlanes>& layers, int32_t layer,
                              const kernels::AttentionParams& params,
                              kernels::AttentionScratch& scratch);

}  // namespace pagoda::lab
