// Whole pages: plans headers, walks the tiles, copies the sink rows, cuts planes, fills checksums.
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

const SegmentEntry* FindSegment(const PageHeader& header, PlaneId plane, int32_t layer) {
  for (const PlaneEntry& entry : header.planes) {
    if (PlaneIdOf(entry) != plane || entry.storage == PlaneStorage::kDelta) continue;
    for (uint32_t i = entry.first_segment;
         i < entry.first_segment + entry.segment_count && i < header.segments.size(); ++i) {
      const SegmentEntry& segment = header.segments[i];
      if (layer >= segment.layer_begin && layer < segment.layer_begin + segment.layer_count) {
        return &segment;
      }
    }
  }
  return nullptr;
}

// Fills one segment from those that hold its layers.
absl::Status CutSegment(PlaneId plane, const PageShape& shape, const PageHeader& source_header,
                        absl::Span<const ByteSpan> source_segments, MutableByteSpan target,
                        SegmentEntry& segment) {
  const TileBytes tile = TileBytesOf(plane, shape);
  const auto first_bytes = static_cast<size_t>(shape.head_count * tile.first);
  const auto second_bytes = static_cast<size_t>(shape.head_count * tile.second);
  for (int32_t i = 0; i < segment.layer_count; ++i) {
    const int32_t layer = segment.layer_begin + i;
    const SegmentEntry* from = FindSegment(source_header, plane, layer);
    const ByteSpan bytes =
        from == nullptr ? ByteSpan() : source_segments[from - source_header.segments.data()];
    if (bytes.data() == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrFormat("cut: the page lacks a plane of layer %d", layer));
    }
    if (from->layer_begin == segment.layer_begin && from->layer_count == segment.layer_count) {
      std::memcpy(target.data(), bytes.data(), segment.length);
      segment.crc32c = from->crc32c;
      return absl::OkStatus();
    }
    const TileBytes to_at = TileOffsets(plane, shape, segment.layer_count, i, /*head=*/0);
    const TileBytes from_at =
        TileOffsets(plane, shape, from->layer_count, layer - from->layer_begin, /*head=*/0);
    std::memcpy(target.data() + to_at.first, bytes.data() + from_at.first, first_bytes);
    std::memcpy(target.data() + to_at.second, bytes.data() + from_at.second, second_bytes);
  }
  segment.crc32c = Crc32c(ByteSpan(target).subspan(0, segment.length));
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

absl::StatusOr<PageHeader> PlanEncodedHeader(const PageHeader& raw16_header, Precision target,
                                             KLoLayers k_lo_layers) {
  const PageShape shape = ShapeOf(raw16_header);
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  PAGODA_RETURN_IF_ERROR(ValidateKLoLayers(k_lo_layers, shape.layer_count));
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
  AppendPlanes(target, shape, header, k_lo_layers);
  return header;
}

absl::StatusOr<PageHeader> PlanCutHeader(const PageHeader& encoded_header, KLoLayers k_lo_layers) {
  const PageShape shape = ShapeOf(encoded_header);
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  PAGODA_RETURN_IF_ERROR(ValidateKLoLayers(k_lo_layers, shape.layer_count));
  PageHeader header = encoded_header;
  header.planes.clear();
  header.segments.clear();
  AppendPlanes(Precision::kQ4, shape, header, k_lo_layers);
  for (const PlaneEntry& plane : header.planes) {
    for (int32_t i = 0; i < plane.layer_count; ++i) {
      if (FindSegment(encoded_header, *PlaneIdOf(plane), plane.layer_begin + i) != nullptr)
        continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "cut: the page has no %s bits %d+%d of layer %d", plane.tensor == Tensor::kK ? "K" : "V",
          plane.bit_begin, plane.bit_count, plane.layer_begin + i));
    }
  }
  return header;
}

absl::Status CutPage(const PageHeader& source_header, absl::Span<const ByteSpan> source_segments,
                     PageHeader& target_header, absl::Span<const MutableByteSpan> target_segments) {
  const PageShape shape = ShapeOf(source_header);
  // Everything is checked by views; what is left are additions.
  PAGODA_RETURN_IF_ERROR(
      PageView::Make(shape, source_header, source_segments, Precision::kQ8).status());
  PAGODA_RETURN_IF_ERROR(PrepareTarget(target_header, target_segments));
  const std::vector<ByteSpan> target_spans(target_segments.begin(), target_segments.end());
  PAGODA_RETURN_IF_ERROR(
      PageView::Make(shape, target_header, target_spans, Precision::kQ8).status());
  for (const PlaneEntry& plane : target_header.planes) {
    for (uint32_t i = 0; i < plane.segment_count; ++i) {
      const uint32_t index = plane.first_segment + i;
      PAGODA_RETURN_IF_ERROR(CutSegment(*PlaneIdOf(plane), shape, source_header, source_segments,
                                        target_segments[index], target_header.segments[index]));
    }
  }
  return absl::OkStatus();
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
