// Whole pages: plans the encoded header, walks the tiles, copies the sink rows, fills checksums.
#include <cstring>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/codec.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda::kernels {
namespace {

using EncodeTile = absl::Status (*)(const EncodeTileParams&);

// Mutable views of a page's own memory that a PageView has checked.
uint16_t* Mutable(const uint16_t* words) { return const_cast<uint16_t*>(words); }
uint32_t* Mutable(const uint32_t* words) { return const_cast<uint32_t*>(words); }

// Every span holds its segment with padding, which is zeroed.
absl::Status PrepareTarget(const PageHeader& header, absl::Span<const MutableByteSpan> segments) {
  if (segments.size() != header.segments.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("encode: %d target spans for %d segments",
                                                      segments.size(), header.segments.size()));
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    const SegmentEntry& segment = header.segments[i];
    const auto stored = static_cast<size_t>(segment.stored_bytes());
    if (segments[i].data() == nullptr || segments[i].size() < stored) {
      return absl::InvalidArgumentError(
          absl::StrFormat("encode: target span %d has %d bytes, its segment stores %d", i,
                          segments[i].size(), stored));
    }
    std::memset(segments[i].data() + segment.length, 0, stored - segment.length);
  }
  return absl::OkStatus();
}

absl::Status EncodeTiles(const PageView& source, const PageView& target, EncodeTile encode) {
  const PageShape& shape = source.shape();
  for (int32_t layer = 0; layer < shape.layer_count; ++layer) {
    for (int32_t head = 0; head < shape.head_count; ++head) {
      const PageTile raw = source.tile(layer, head);
      const PageTile codes = target.tile(layer, head);
      EncodeTileParams params;
      params.raw_k = raw.raw_k;
      params.raw_v = raw.raw_v;
      params.head_dim = shape.head_dim;
      params.page_tokens = shape.page_tokens;
      params.k_hi_params = Mutable(codes.k_hi_params);
      params.v_hi_params = Mutable(codes.v_hi_params);
      params.k_lo_params = Mutable(codes.k_lo_params);
      params.v_lo_params = Mutable(codes.v_lo_params);
      params.k_hi = Mutable(codes.k_hi);
      params.v_hi = Mutable(codes.v_hi);
      params.k_lo = Mutable(codes.k_lo);
      params.v_lo = Mutable(codes.v_lo);
      PAGODA_RETURN_IF_ERROR(encode(params));
      const size_t sink_bytes =
          static_cast<size_t>(codes.sink_count * shape.head_dim) * sizeof(uint16_t);
      if (sink_bytes == 0) continue;
      std::memcpy(Mutable(codes.sink_k), raw.raw_k, sink_bytes);
      std::memcpy(Mutable(codes.sink_v), raw.raw_v, sink_bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status EncodeWith(EncodeTile encode, const PageHeader& raw16_header,
                        absl::Span<const ByteSpan> raw_segments, PageHeader& target_header,
                        absl::Span<const MutableByteSpan> target_segments) {
  const PageShape shape = ShapeOf(raw16_header);
  const auto source = PageView::Make(shape, raw16_header, raw_segments, Precision::kRaw16);
  PAGODA_RETURN_IF_ERROR(source.status());
  if (source->precision() != Precision::kRaw16) {
    return absl::FailedPreconditionError("encode: the source is not a complete raw16 page");
  }
  PAGODA_RETURN_IF_ERROR(PrepareTarget(target_header, target_segments));
  const std::vector<ByteSpan> target_spans(target_segments.begin(), target_segments.end());
  const auto target = PageView::Make(shape, target_header, target_spans, Precision::kQ8);
  PAGODA_RETURN_IF_ERROR(target.status());
  const Precision precision = target->precision();
  if (precision != Precision::kQ8 && precision != Precision::kQ4) {
    return absl::FailedPreconditionError("encode: the target's planes are not those of q8 or q4");
  }
  PAGODA_RETURN_IF_ERROR(EncodeTiles(*source, *target, encode));
  FillChecksums(target_spans, target_header);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PageHeader> PlanEncodedHeader(const PageHeader& raw16_header, Precision target) {
  const PageShape shape = ShapeOf(raw16_header);
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  if (target != Precision::kQ8 && target != Precision::kQ4) {
    return absl::InvalidArgumentError("encode: the target must be q8 or q4");
  }
  if (PrecisionOf(raw16_header.planes) != Precision::kRaw16) {
    return absl::FailedPreconditionError("encode: the source is not a raw16 page");
  }
  PageHeader header = raw16_header;
  header.planes.clear();
  header.segments.clear();
  header.rotation = Rotation::kHadamardV1;
  header.recipe = CodeRecipe::kEmbedded8;
  AppendPlanes(target, shape, header);
  return header;
}

absl::Status EncodePage(const PageHeader& raw16_header, absl::Span<const ByteSpan> raw_segments,
                        PageHeader& target_header,
                        absl::Span<const MutableByteSpan> target_segments) {
  return EncodeWith(EncodeTileCpu, raw16_header, raw_segments, target_header, target_segments);
}

absl::Status EncodePageRef(const PageHeader& raw16_header, absl::Span<const ByteSpan> raw_segments,
                           PageHeader& target_header,
                           absl::Span<const MutableByteSpan> target_segments) {
  return EncodeWith(EncodeTileRef, raw16_header, raw_segments, target_header, target_segments);
}

void FillChecksums(absl::Span<const ByteSpan> segments, PageHeader& header) {
  for (size_t i = 0; i < header.segments.size() && i < segments.size(); ++i) {
    header.segments[i].crc32c = Crc32c(segments[i].subspan(0, header.segments[i].length));
  }
}

}  // namespace pagoda::kernels
