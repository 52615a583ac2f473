#include "cache-server/page_encoding.h"

#include "absl/strings/str_cat.h"
#include "kernels/codec.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr uint8_t kHiBitBegin = 4;  // of the embedded code; the bits below are the lo planes

std::vector<ByteSpan> SegmentsOf(const HostPage& page) {
  std::vector<ByteSpan> segments;
  for (size_t i = 0; i < page.segment_count(); ++i) segments.push_back(page.padded_segment(i));
  return segments;
}

absl::Status FillLower(const HostPage& page, PageHeader& header,
                       const std::vector<MutableByteSpan>& targets) {
  const bool raw = page.precision() == Precision::kRaw16;
  return raw ? kernels::EncodePage(page.header(), SegmentsOf(page), header, targets)
             : kernels::CutPage(page.header(), SegmentsOf(page), header, targets);
}

// make(target), or at the next richer precision below the page's own as long as it cannot hold the
// page's values.
template <typename Make>
auto AtFirstThatHolds(const HostPage& page, Precision target, Make make) {
  auto made = make(target);
  for (auto richer = kStoredPrecisions.rbegin(); richer != kStoredPrecisions.rend(); ++richer) {
    if (made.status().code() != absl::StatusCode::kInvalidArgument) break;
    if (*richer > target && *richer < page.precision()) made = make(*richer);
  }
  return made;
}

absl::StatusOr<StagedPage> StageAt(TieredStore& store, const HostPage& page, Precision target,
                                   kernels::KLoLayers k_lo_layers) {
  PAGODA_ASSIGN_OR_RETURN(PageHeader planned, PlanAtPrecision(page, target, k_lo_layers));
  PAGODA_ASSIGN_OR_RETURN(StagedPage staged, store.Stage(page.header().scope, std::move(planned)));
  std::vector<MutableByteSpan> targets;
  for (size_t i = 0; i < staged.segment_count(); ++i) targets.push_back(staged.padded_segment(i));
  PAGODA_RETURN_IF_ERROR(FillLower(page, staged.mutable_header(), targets));
  return staged;
}

absl::StatusOr<std::shared_ptr<const EncodedCopy>> CopyAt(const HostPage& page, Precision target,
                                                          kernels::KLoLayers k_lo_layers) {
  auto copy = std::make_shared<EncodedCopy>();
  PAGODA_ASSIGN_OR_RETURN(copy->header, PlanAtPrecision(page, target, k_lo_layers));
  std::vector<MutableByteSpan> targets;
  for (const SegmentEntry& segment : copy->header.segments) {
    copy->segments.emplace_back(segment.stored_bytes());
    targets.push_back(copy->segments.back().mutable_span());
  }
  PAGODA_RETURN_IF_ERROR(FillLower(page, copy->header, targets));
  return std::shared_ptr<const EncodedCopy>(std::move(copy));
}

}  // namespace

absl::StatusOr<PageHeader> PlanAtPrecision(const HostPage& page, Precision target,
                                           kernels::KLoLayers k_lo_layers) {
  if (page.precision() == Precision::kRaw16) {
    return kernels::PlanEncodedHeader(page.header(), target, k_lo_layers);
  }
  if (page.precision() > Precision::kQ8 || page.precision() <= target) {
    return absl::DataLossError(absl::StrCat("page: no way from ", PrecisionName(page.precision()),
                                            " to ", PrecisionName(target)));
  }
  return kernels::PlanCutHeader(page.header(), target, k_lo_layers);
}

bool IsLo(const PlaneEntry& plane) {
  return plane.kind == PlaneKind::kCodes && plane.bit_begin < kHiBitBegin;
}

std::vector<PlaneEntry> PlanesAt(const PageHeader& page, Precision most) {
  // The lo planes that a q4 page has belong to it.
  if (most >= Precision::kQ8 || PrecisionOf(page.planes) < Precision::kQ8) return page.planes;
  std::vector<PlaneEntry> planes;
  for (const PlaneEntry& plane : page.planes) {
    if (!IsLo(plane)) planes.push_back(plane);
  }
  return planes;
}

Selection Select(const PageHeader& page, uint32_t layer_begin, uint32_t layer_end,
                 const std::vector<PlaneEntry>& planes) {
  Selection out;
  out.header = page;
  out.header.planes.clear();
  out.header.segments.clear();
  for (PlaneEntry plane : planes) {
    const uint32_t first = plane.first_segment;
    const uint32_t end = first + plane.segment_count;
    plane.first_segment = static_cast<uint32_t>(out.header.segments.size());
    plane.segment_count = 0;
    for (uint32_t i = first; i < end; ++i) {
      const SegmentEntry& segment = page.segments[i];
      const uint32_t segment_end = segment.layer_begin + uint32_t{segment.layer_count};
      if (segment.layer_begin >= layer_end || segment_end <= layer_begin) continue;
      if (plane.segment_count == 0) plane.layer_begin = segment.layer_begin;
      plane.layer_count = static_cast<uint16_t>(segment_end - plane.layer_begin);
      ++plane.segment_count;
      out.header.segments.push_back(segment);
      out.segments.push_back(i);
    }
    if (plane.segment_count > 0) out.header.planes.push_back(plane);
  }
  AssignOffsets(out.header);
  return out;
}

absl::StatusOr<StagedPage> StageAtPrecision(TieredStore& store, const HostPage& page,
                                            Precision target, kernels::KLoLayers k_lo_layers) {
  return AtFirstThatHolds(page, target, [&](Precision precision) {
    return StageAt(store, page, precision, k_lo_layers);
  });
}

absl::StatusOr<std::shared_ptr<const EncodedCopy>> EncodeCopy(const HostPage& page,
                                                              Precision target,
                                                              kernels::KLoLayers k_lo_layers) {
  return AtFirstThatHolds(
      page, target, [&](Precision precision) { return CopyAt(page, precision, k_lo_layers); });
}

absl::StatusOr<SsdForm> SsdFormAt(const HostPage& page, Precision target,
                                  kernels::KLoLayers k_lo_layers) {
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<const EncodedCopy> copy,
                          EncodeCopy(page, target, k_lo_layers));
  SsdForm form;
  form.header = copy->header;
  for (const kernels::AlignedBuffer& segment : copy->segments) {
    form.segments.push_back(segment.span());
  }
  form.owner = copy;
  return form;
}

}  // namespace pagoda
