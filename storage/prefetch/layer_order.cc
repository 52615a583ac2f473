#include "storage/prefetch/layer_order.h"

#include <algorithm>
#include <tuple>

namespace pagoda::prefetch {

std::vector<OrderedPart> OrderByLayer(absl::Span<const LayerPart> parts, absl::Duration now,
                                      absl::Duration layer_time) {
  std::vector<LayerPart> sorted(parts.begin(), parts.end());
  std::sort(sorted.begin(), sorted.end(), [](const LayerPart& a, const LayerPart& b) {
    return std::tie(a.first_layer, a.page_index, a.part_index) <
           std::tie(b.first_layer, b.page_index, b.part_index);
  });
  std::vector<OrderedPart> ordered;
  ordered.reserve(sorted.size());
  for (const LayerPart& part : sorted) {
    ordered.push_back({part.page_index, part.part_index,
                       now + static_cast<int64_t>(part.first_layer) * layer_time});
  }
  return ordered;
}

}  // namespace pagoda::prefetch
