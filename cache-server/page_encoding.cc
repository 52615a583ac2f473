#include "cache-server/page_encoding.h"

#include <algorithm>
#include <cstring>

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

absl::Status EncodeInto(const HostPage& page, StagedPage& staged) {
  std::vector<MutableByteSpan> targets;
  for (size_t i = 0; i < staged.segment_count(); ++i) {
    // Slabs are whole blocks of 4096 bytes: the padding after the payload is ours to clear.
    const MutableByteSpan payload = staged.segment(i);
    targets.emplace_back(payload.data(),
                         static_cast<size_t>(staged.header().segments[i].stored_bytes()));
  }
  return kernels::EncodePage(page.header(), SegmentsOf(page), staged.mutable_header(), targets);
}

}  // namespace

std::vector<PlaneEntry> PlanesAt(const PageHeader& page, Precision most) {
  std::vector<PlaneEntry> planes;
  for (const PlaneEntry& plane : page.planes) {
    const bool lo = plane.kind == PlaneKind::kCodes && plane.bit_begin < kHiBitBegin;
    if (!lo || most >= Precision::kQ8) planes.push_back(plane);
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
                                            Precision target) {
  const PageHeader& header = page.header();
  if (page.precision() == Precision::kRaw16) {
    PAGODA_ASSIGN_OR_RETURN(PageHeader planned, kernels::PlanEncodedHeader(header, target));
    PAGODA_ASSIGN_OR_RETURN(StagedPage staged, store.Stage(header.scope, std::move(planned)));
    PAGODA_RETURN_IF_ERROR(EncodeInto(page, staged));
    return staged;
  }
  if (page.precision() != Precision::kQ8 || target != Precision::kQ4) {
    return absl::DataLossError("page is neither raw16 nor q8");
  }
  Selection hi = Select(header, 0, header.layer_count, PlanesAt(header, target));
  PAGODA_ASSIGN_OR_RETURN(StagedPage staged, store.Stage(header.scope, std::move(hi.header)));
  for (size_t i = 0; i < hi.segments.size(); ++i) {
    const ByteSpan source = page.segment(hi.segments[i]);
    std::memcpy(staged.segment(i).data(), source.data(), source.size());
  }
  return staged;
}

absl::StatusOr<std::shared_ptr<const EncodedCopy>> EncodeCopy(const HostPage& page,
                                                              Precision target) {
  auto copy = std::make_shared<EncodedCopy>();
  PAGODA_ASSIGN_OR_RETURN(copy->header, kernels::PlanEncodedHeader(page.header(), target));
  std::vector<MutableByteSpan> targets;
  for (const SegmentEntry& segment : copy->header.segments) {
    copy->segments.emplace_back(segment.stored_bytes());
    targets.push_back(copy->segments.back().mutable_span());
  }
  PAGODA_RETURN_IF_ERROR(
      kernels::EncodePage(page.header(), SegmentsOf(page), copy->header, targets));
  return std::shared_ptr<const EncodedCopy>(std::move(copy));
}

}  // namespace pagoda
