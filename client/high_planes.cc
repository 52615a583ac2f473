#include "client/high_planes.h"

#include <utility>

namespace pagoda::client {
namespace {

constexpr uint8_t kHiBitBegin = 4;  // of the 8-bit code

bool IsHigh(const PlaneEntry& plane) {
  return plane.kind != PlaneKind::kCodes || plane.bit_begin >= kHiBitBegin;
}

}  // namespace

std::vector<bool> HighSegments(const PageHeader& page) {
  std::vector<bool> high(page.segments.size(), false);
  for (const PlaneEntry& plane : page.planes) {
    if (!IsHigh(plane)) continue;
    for (uint32_t i = 0; i < plane.segment_count; ++i) high[plane.first_segment + i] = true;
  }
  return high;
}

HighPart HighPartOf(const PageHeader& page) {
  HighPart part;
  part.header = page;
  part.header.planes.clear();
  part.header.segments.clear();
  for (PlaneEntry plane : page.planes) {
    if (!IsHigh(plane)) continue;
    const uint32_t first = plane.first_segment;
    plane.first_segment = static_cast<uint32_t>(part.header.segments.size());
    for (uint32_t i = first; i < first + plane.segment_count; ++i) {
      part.header.segments.push_back(page.segments[i]);
      part.kept.push_back(i);
    }
    part.header.planes.push_back(plane);
  }
  AssignOffsets(part.header);
  return part;
}

void ReduceToHigh(PageHeader& page, std::vector<kernels::AlignedBuffer>& own) {
  HighPart part = HighPartOf(page);
  if (!own.empty()) {
    std::vector<kernels::AlignedBuffer> kept;
    for (const uint32_t segment : part.kept) kept.push_back(std::move(own[segment]));
    own = std::move(kept);
  }
  page = std::move(part.header);
}

}  // namespace pagoda::client
