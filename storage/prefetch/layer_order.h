// In which order the parts of a matched prefix are needed. Attention at layer l reads every page of
// the prefix, so layer 0 of all pages comes before layer 1 of any; layer l is computed l times the
// time of one layer from now. Pure.
//
// Cost       O(n log n) of the parts
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace pagoda::prefetch {

// A part of a page that is read at once: a segment, or the record of one layer group.
struct LayerPart {
  uint32_t page_index = 0;  // in the prefix, root first
  uint32_t part_index = 0;  // in its page; the caller's number, kept
  uint32_t first_layer = 0;
};

struct OrderedPart {
  uint32_t page_index = 0;
  uint32_t part_index = 0;
  absl::Duration deadline;
  bool operator==(const OrderedPart&) const = default;
};

// By layer, then root first, then by part.
std::vector<OrderedPart> OrderByLayer(absl::Span<const LayerPart> parts, absl::Duration now,
                                      absl::Duration layer_time);

}  // namespace pagoda::prefetch
