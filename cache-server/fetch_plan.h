// What a Fetch sends: which segments of which pages, in which order. Pure, apart from reading the
// pages it was given.
//
//   all pages' headers | layer 0: segments of page 0, 1, ... | next layers ... | all pages' ends
//
// A segment goes out at the first wanted layer it holds, so that layer 0 of every page is complete
// before anything that only later layers need. With high_first there are two such rows of segments,
// the lo planes' behind all others.
//
// Ownership  a served page keeps its bytes alive until the last slice of them is sent.
// Errors     INVALID_ARGUMENT  a layer range that the page does not have, an unknown plane kind
//            UNIMPLEMENTED     a known plane kind that is not served yet
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache-server/page_encoding.h"
#include "pagoda/v1/cache.pb.h"
#include "storage/host_page.h"
#include "storage/tier.h"

namespace pagoda {

struct FetchSelection {
  uint32_t layer_begin = 0;
  uint32_t layer_count = 0;               // 0: all
  std::vector<v1::PlaneSelector> planes;  // empty: what is needed at precision_max
  Precision precision_max = Precision::kOpaque;
  bool high_first = false;  // the codes' upper bits, and what has none, before their lower bits
};
absl::StatusOr<FetchSelection> ParseFetchSelection(const v1::FetchRequest& request);

// One page of the answer: a header and the bytes that follow under it.
struct ServedPage {
  std::shared_ptr<const void> bytes_owner;
  PageHeader header;
  std::vector<ByteSpan> segments;  // payloads, as in header.segments
  std::vector<uint32_t> sources;   // where they are among the stored page's segments
};

// From the stored page, or from `encoded` when it is answered in a form of its own: raw16 at a
// lower precision, q8 at q4 with the layers of a profile, anything at q3 or q2.
absl::StatusOr<ServedPage> ServePage(const HostPagePtr& page,
                                     const std::shared_ptr<const EncodedCopy>& encoded,
                                     const FetchSelection& selection);

struct SegmentOrder {
  uint32_t page = 0;     // in the answer
  uint32_t segment = 0;  // in that page's header
};
std::vector<SegmentOrder> OrderOf(const std::vector<ServedPage>& pages,
                                  const FetchSelection& selection);

}  // namespace pagoda
