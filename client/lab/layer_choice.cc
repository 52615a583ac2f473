#include "client/lab/layer_choice.h"

#include <algorithm>
#include <numeric>

#include "storage/base/check.h"

namespace pagoda::lab {
double ProfileBits(const kernels::PageShape& shape, int32_t k_lo_layer_count) {
  const double scale = 16.0 * kernels::GroupsOf(shape.head_dim).count / shape.head_dim;
  const double q4 = 4 + scale + 16.0 / shape.page_tokens / 2;
  return q4 + (4 + scale) * k_lo_layer_count / shape.layer_count / 2;
}

std::vector<int32_t> ChooseLayers(const kernels::PageShape& shape, absl::Span<const double> gains,
                                  double bits_max) {
  PAGODA_CHECK(static_cast<int32_t>(gains.size()) == shape.layer_count);
  std::vector<int32_t> layers(gains.size());
  std::iota(layers.begin(), layers.end(), 0);
  std::stable_sort(layers.begin(), layers.end(),
                   [&](int32_t a, int32_t b) { return gains[a] > gains[b]; });
  int32_t count = 0;
  while (count < shape.layer_count && gains[layers[count]] > 0 &&
         ProfileBits(shape, count + 1) <= bits_max) {
    ++count;
  }
  layers.resize(count);
  std::sort(layers.begin(), layers.end());
  return layers;
}

std::vector<LayerPlanes> PlanesOf(int32_t layer_count, absl::Span<const int32_t> k_lo_layers) {
  std::vector<LayerPlanes> planes(layer_count);
  for (const int32_t layer : k_lo_layers) planes[layer].k_lo = true;
  return planes;
}

}  // namespace pagoda::lab
