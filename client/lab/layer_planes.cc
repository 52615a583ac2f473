#include "client/lab/layer_planes.h"

namespace pagoda::lab {

absl::Status AttendWithPlanes(const std::vector<LayerPlanes>& layers, int32_t layer,
                              const kernels::AttentionParams& params,
                              kernels::AttentionScratch& scratch) {
  const LayerPlanes planes = layers[layer];
  std::vector<kernels::PageTile> pages(params.pages.begin(), params.pages.end());
  for (kernels::PageTile& page : pages) {
    if (page.precision != Precision::kQ8 || (planes.k_lo && planes.v_lo)) continue;
    page.precision = Precision::kQ4;
    if (!planes.k_lo) {
      page.k_lo = nullptr;
      page.k_lo_params = nullptr;
    }
    if (!planes.v_lo) {
      page.v_lo = nullptr;
      page.v_lo_params = nullptr;
    }
  }
  kernels::AttentionParams narrowed = params;
  narrowed.pages = pages;
  return kernels::AttentionCpu(narrowed, scratch);
}

}  // namespace pagoda::lab
