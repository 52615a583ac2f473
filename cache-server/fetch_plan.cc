#include "cache-server/fetch_plan.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_format.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

absl::Status CheckSelector(const v1::PlaneSelector& selector) {
  const int kind = selector.kind();
  if (kind < 1 || kind > kPlaneKindMax) {
    return absl::InvalidArgumentError(absl::StrFormat("planes.kind: %d is unknown", kind));
  }
  const auto plane = static_cast<PlaneKind>(kind);
  if (plane != PlaneKind::kCodes && plane != PlaneKind::kRaw16 && plane != PlaneKind::kRawRows &&
      plane != PlaneKind::kOpaque) {
    return absl::UnimplementedError(
        absl::StrFormat("planes.kind: %s is not served yet", std::string(PlaneKindName(plane))));
  }
  return absl::OkStatus();
}

bool Wanted(const PlaneEntry& plane, const std::vector<v1::PlaneSelector>& selectors) {
  return std::any_of(selectors.begin(), selectors.end(), [&](const v1::PlaneSelector& selector) {
    if (static_cast<int>(selector.kind()) != static_cast<int>(plane.kind)) return false;
    if (plane.kind != PlaneKind::kCodes || selector.bit_count() == 0) return true;
    const uint64_t end = uint64_t{selector.bit_begin()} + selector.bit_count();
    return plane.bit_begin >= selector.bit_begin() &&
           uint64_t{plane.bit_begin} + plane.bit_count <= end;
  });
}

}  // namespace

absl::StatusOr<FetchSelection> ParseFetchSelection(const v1::FetchRequest& request) {
  FetchSelection selection;
  selection.layer_begin = request.layer_begin();
  selection.layer_count = request.layer_count();
  if (request.planes_size() > 64) {
    return absl::InvalidArgumentError(
        absl::StrFormat("planes: %d selectors, expected at most 64", request.planes_size()));
  }
  selection.high_first = request.order() == v1::PLANE_ORDER_HIGH_FIRST;
  for (const v1::PlaneSelector& selector : request.planes()) {
    PAGODA_RETURN_IF_ERROR(CheckSelector(selector));
    selection.planes.push_back(selector);
  }
  PAGODA_ASSIGN_OR_RETURN(selection.precision_max,
                          FromWire(request.precision_max(), Precision::kOpaque));
  return selection;
}

absl::StatusOr<ServedPage> ServePage(const HostPagePtr& page,
                                     const std::shared_ptr<const EncodedCopy>& encoded,
                                     const FetchSelection& selection) {
  const PageHeader& source = encoded != nullptr ? encoded->header : page->header();
  const uint32_t layers = source.layer_count;
  if (selection.layer_begin >= layers || selection.layer_count > layers - selection.layer_begin) {
    return absl::InvalidArgumentError(absl::StrFormat("layers: %d+%d asked, the page has %d",
                                                      selection.layer_begin, selection.layer_count,
                                                      layers));
  }
  const uint32_t layer_end =
      selection.layer_count == 0 ? layers : selection.layer_begin + selection.layer_count;
  std::vector<PlaneEntry> planes = PlanesAt(source, selection.precision_max);
  if (!selection.planes.empty()) {
    planes = source.planes;
    planes.erase(std::remove_if(planes.begin(), planes.end(),
                                [&](const PlaneEntry& p) { return !Wanted(p, selection.planes); }),
                 planes.end());
  }
  ServedPage served;
  Selection selected = Select(source, selection.layer_begin, layer_end, planes);
  served.header = std::move(selected.header);
  served.sources = selected.segments;
  for (const uint32_t index : selected.segments) {
    served.segments.push_back(encoded != nullptr ? encoded->segments[index].span().subspan(
                                                       0, source.segments[index].length)
                                                 : page->segment(index));
  }
  if (encoded != nullptr) {
    served.bytes_owner = encoded;
  } else {
    served.bytes_owner = page;
  }
  return served;
}

std::vector<SegmentOrder> OrderOf(const std::vector<ServedPage>& pages,
                                  const FetchSelection& selection) {
  struct Keyed {
    bool late;
    uint32_t layer;
    SegmentOrder order;
  };
  std::vector<Keyed> all;
  for (uint32_t p = 0; p < pages.size(); ++p) {
    const std::vector<SegmentEntry>& segments = pages[p].header.segments;
    std::vector<bool> late(segments.size(), false);
    for (const PlaneEntry& plane : pages[p].header.planes) {
      if (!selection.high_first || !IsLo(plane)) continue;
      for (uint32_t i = 0; i < plane.segment_count; ++i) late[plane.first_segment + i] = true;
    }
    for (uint32_t s = 0; s < segments.size(); ++s) {
      all.push_back(
          {late[s], std::max<uint32_t>(segments[s].layer_begin, selection.layer_begin), {p, s}});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Keyed& a, const Keyed& b) {
    return std::tie(a.late, a.layer) < std::tie(b.late, b.layer);
  });
  std::vector<SegmentOrder> out;
  out.reserve(all.size());
  for (const Keyed& keyed : all) out.push_back(keyed.order);
  return out;
}

}  // namespace pagoda
