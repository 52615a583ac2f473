// The planes of a page that are enough to attend on it, and the page without the others. hi is what
// q4 is read from; lo refines it to q8. What has no codes (raw16, sink rows) is needed either way.
//
// Threads  pure functions
#pragma once

#include <vector>

#include "kernels/aligned_buffer.h"
#include "storage/base/page_header.h"

namespace pagoda::client {

// By segment of the page: whether it belongs to those planes.
std::vector<bool> HighSegments(const PageHeader& page);

// The page with those planes alone: as precise as they are. `kept[i]` is what segment i of it was
// in `page`.
struct HighPart {
  PageHeader header;
  std::vector<uint32_t> kept;
};
HighPart HighPartOf(const PageHeader& page);

// Leaves those planes alone of a page, and of its segments' memory where that is the page's own.
void ReduceToHigh(PageHeader& page, std::vector<kernels::AlignedBuffer>& own);

}  // namespace pagoda::client
