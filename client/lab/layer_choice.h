// Which layers a layer profile (kernels/layer_profile.h) keeps: chosen from measured gains under a
// budget of bits.
//
// Choice     greedy by gain. All layers cost the same bits, so for gains that add up no set of as
//            many layers gains more; that they nearly do is measured, by the profile's own KL.
// Units      bits per element, mean over K and V; gains in nats of mean KL
// Threads    pure functions
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/lab/layer_planes.h"
#include "kernels/page_layout.h"

namespace pagoda::lab {

// Scales and page means counted, as in kv_codec.h.
double ProfileBits(const kernels::PageShape& shape, int32_t k_lo_layer_count);

// The layers of most gain, ascending: as many as `bits_max` allows, none without a gain.
// REQUIRES: a gain for each layer.
std::vector<int32_t> ChooseLayers(const kernels::PageShape& shape, absl::Span<const double> gains,
                                  double bits_max);

// K lo in those layers, nothing else beyond q4.
std::vector<LayerPlanes> PlanesOf(int32_t layer_count, absl::Span<const int32_t> k_lo_layers);

}  // namespace pagoda::lab
