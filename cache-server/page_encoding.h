// One page in, the same page at a lower precision out; where that cannot hold the page's values, at
// the next richer one that can. raw16 is encoded once; q8 becomes q4 by
// leaving the lo planes out, but for K in the layers of the model's profile; q3 and q2 are cut out
// of hi. Nothing is ever quantized again.
//
// Threads  pure functions over immutable pages.   Cost  raw16: about 1.3 ns an element; q8: a copy
// Errors   INVALID_ARGUMENT    no precision below its own holds the page (NaN, infinity): it stays
//                              what it is
//          RESOURCE_EXHAUSTED  no room for the new form
//          DATA_LOSS           the page's tables are not those of our planes
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/aligned_buffer.h"
#include "kernels/page_layout.h"
#include "storage/host_page.h"
#include "storage/tiered_store.h"

namespace pagoda {

// The header of the page at `target`, and so its size. REQUIRES: as below.
absl::StatusOr<PageHeader> PlanAtPrecision(const HostPage& page, Precision target,
                                           kernels::KLoLayers k_lo_layers);

// In the store's memory, ready for ReplaceEncoding(). REQUIRES: target q8 to q2, below the page's
// precision.
absl::StatusOr<StagedPage> StageAtPrecision(TieredStore& store, const HostPage& page,
                                            Precision target, kernels::KLoLayers k_lo_layers);

// The same in memory of its own, for one answer.
struct EncodedCopy {
  PageHeader header;
  std::vector<kernels::AlignedBuffer> segments;
};
absl::StatusOr<std::shared_ptr<const EncodedCopy>> EncodeCopy(const HostPage& page,
                                                              Precision target,
                                                              kernels::KLoLayers k_lo_layers);

// The same for TieredStore's copy on SSD.
absl::StatusOr<SsdForm> SsdFormAt(const HostPage& page, Precision target,
                                  kernels::KLoLayers k_lo_layers);

// Which of a page's planes and segments go out: planes that pass, and of them the segments that
// meet the layers [layer_begin, layer_end). The header lists exactly those, in their old order.
struct Selection {
  PageHeader header;               // offsets assigned, checksums kept
  std::vector<uint32_t> segments;  // header.segments[i] was segment segments[i] of the page
};
Selection Select(const PageHeader& page, uint32_t layer_begin, uint32_t layer_end,
                 const std::vector<PlaneEntry>& planes);

// Whether it holds lower bits of the codes, which a page is read without at q4.
bool IsLo(const PlaneEntry& plane);

// The planes a reader needs at `most`: below q8 a q8 page is read without its lo planes. Where the
// model has a profile, and below q4, the reader wants EncodeCopy() instead.
std::vector<PlaneEntry> PlanesAt(const PageHeader& page, Precision most);

}  // namespace pagoda
