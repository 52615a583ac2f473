// Whole pages: plans headers, walks the tiles, copies the sink rows, cuts planes, fills checksums.
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/aligned_buffer.h"
#include "kernels/codec.h"
#include "kernels/top_codes.h"
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

// The plane that holds the same codes with one bit more.
std::optional<PlaneId> RicherThan(PlaneId plane) {
  switch (plane) {
    case PlaneId::kKTop2:
      return PlaneId::kKTop3;
    case PlaneId::kVTop2:
      return PlaneId::kVTop3;
    case PlaneId::kKTop3:
      return PlaneId::kKHi;
    case PlaneId::kVTop3:
      return PlaneId::kVHi;
    default:
      return std::nullopt;
  }
}

// One layer of a plane, all heads: params or K rows, and codes or V rows.
struct LayerBytesAt {
  PlaneId plane = PlaneId::kRaw16;
  const std::byte* first = nullptr;
  const std::byte* second = nullptr;
};

class CutSource {
 public:
  // REQUIRES: PageView::Check() passed.
  CutSource(const PageShape& shape, const PageHeader& header, absl::Span<const ByteSpan> segments)
      : shape_(shape), header_(header), segments_(segments) {}

  // Of the plane itself, or else of the poorest one that holds its codes.
  absl::StatusOr<LayerBytesAt> Find(PlaneId wanted, int32_t layer) const {
    for (std::optional<PlaneId> plane = wanted; plane.has_value(); plane = RicherThan(*plane)) {
      const SegmentEntry* segment = FindSegment(header_, *plane, layer);
      if (segment == nullptr) continue;
      const ByteSpan bytes = segments_[segment - header_.segments.data()];
      if (bytes.data() == nullptr) continue;
      const TileBytes at =
          TileOffsets(*plane, shape_, segment->layer_count, layer - segment->layer_begin, 0);
      return LayerBytesAt{*plane, bytes.data() + at.first, bytes.data() + at.second};
    }
    return absl::FailedPreconditionError(
        absl::StrFormat("cut: the page lacks a plane of layer %d", layer));
  }

  // The segment of `plane` with exactly these layers, where its bytes are here; else null.
  const SegmentEntry* Whole(PlaneId plane, const SegmentEntry& wanted, ByteSpan* bytes) const {
    const SegmentEntry* segment = FindSegment(header_, plane, wanted.layer_begin);
    if (segment == nullptr || segment->layer_begin != wanted.layer_begin ||
        segment->layer_count != wanted.layer_count) {
      return nullptr;
    }
    *bytes = segments_[segment - header_.segments.data()];
    return bytes->data() == nullptr ? nullptr : segment;
  }

 private:
  const PageShape& shape_;
  const PageHeader& header_;
  absl::Span<const ByteSpan> segments_;
};

const uint16_t* Words16(const std::byte* bytes) { return reinterpret_cast<const uint16_t*>(bytes); }
const uint32_t* Words32(const std::byte* bytes) { return reinterpret_cast<const uint32_t*>(bytes); }

// All heads of a layer of top codes from the same codes with more bits.
absl::Status CutLayer(const LayerBytesAt& from, PlaneId plane, const PageShape& shape,
                      std::byte* first, std::byte* second) {
  const bool is_k = plane == PlaneId::kKTop3 || plane == PlaneId::kKTop2;
  const PlaneId middle = is_k ? PlaneId::kKTop3 : PlaneId::kVTop3;
  const CodesShape codes_shape{shape.head_dim, shape.page_tokens, is_k};
  const TileBytes step = TileBytesOf(from.plane, shape);
  const TileBytes to_step = TileBytesOf(plane, shape);
  const TileBytes middle_bytes = TileBytesOf(middle, shape);
  const bool by_middle = plane != middle && from.plane != middle;
  AlignedBuffer scratch;
  if (by_middle) scratch = AlignedBuffer::Uninitialized(middle_bytes.first + middle_bytes.second);
  for (int32_t head = 0; head < shape.head_count; ++head) {
    TileCodes source{Words16(from.first + head * step.first),
                     Words32(from.second + head * step.second)};
    const MutableTileCodes target{reinterpret_cast<uint16_t*>(first + head * to_step.first),
                                  reinterpret_cast<uint32_t*>(second + head * to_step.second)};
    if (from.plane == middle) {
      PAGODA_RETURN_IF_ERROR(CutTop3ToTop2(codes_shape, source, target));
      continue;
    }
    MutableTileCodes top3 = target;
    if (by_middle) {
      top3 = {reinterpret_cast<uint16_t*>(scratch.data()),
              reinterpret_cast<uint32_t*>(scratch.data() + middle_bytes.first)};
    }
    PAGODA_RETURN_IF_ERROR(CutHiToTop3(codes_shape, source, top3));
    if (!by_middle) continue;
    PAGODA_RETURN_IF_ERROR(CutTop3ToTop2(codes_shape, {top3.params, top3.codes}, target));
  }
  return absl::OkStatus();
}

// Fills one segment from those that hold its layers.
absl::Status CutSegment(PlaneId plane, const PageShape& shape, const CutSource& source,
                        MutableByteSpan target, SegmentEntry& segment) {
  ByteSpan whole;
  if (const SegmentEntry* from = source.Whole(plane, segment, &whole); from != nullptr) {
    std::memcpy(target.data(), whole.data(), segment.length);
    segment.crc32c = from->crc32c;
    return absl::OkStatus();
  }
  const TileBytes tile = TileBytesOf(plane, shape);
  for (int32_t i = 0; i < segment.layer_count; ++i) {
    PAGODA_ASSIGN_OR_RETURN(const LayerBytesAt from, source.Find(plane, segment.layer_begin + i));
    const TileBytes at = TileOffsets(plane, shape, segment.layer_count, i, /*head=*/0);
    std::byte* first = target.data() + at.first;
    std::byte* second = target.data() + at.second;
    if (from.plane == plane) {
      std::memcpy(first, from.first, static_cast<size_t>(shape.head_count * tile.first));
      std::memcpy(second, from.second, static_cast<size_t>(shape.head_count * tile.second));
    } else {
      PAGODA_RETURN_IF_ERROR(CutLayer(from, plane, shape, first, second));
    }
  }
  segment.crc32c = Crc32c(ByteSpan(target).subspan(0, segment.length));
  return absl::OkStatus();
}

bool IsEncoded(Precision precision) {
  return precision == Precision::kQ8 || precision == Precision::kQ4 ||
         precision == Precision::kQ3 || precision == Precision::kQ2;
}

// Memory for the segments of a page.
struct OwnedSegments {
  explicit OwnedSegments(const PageHeader& header) {
    for (const SegmentEntry& segment : header.segments) {
      buffers.push_back(AlignedBuffer::Uninitialized(segment.stored_bytes()));
      spans.push_back(buffers.back().span());
      mutable_spans.push_back(buffers.back().mutable_span());
    }
  }
  std::vector<AlignedBuffer> buffers;
  std::vector<ByteSpan> spans;
  std::vector<MutableByteSpan> mutable_spans;
};

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
  const Precision precision = PrecisionOf(target_header.planes);
  if (precision == Precision::kQ3 || precision == Precision::kQ2) {
    PAGODA_ASSIGN_OR_RETURN(PageHeader q4, PlanEncodedHeader(raw16_header, Precision::kQ4));
    const OwnedSegments q4_segments(q4);
    PAGODA_RETURN_IF_ERROR(
        EncodeWith(encode, raw16_header, raw_segments, q4, q4_segments.mutable_spans));
    return CutPage(q4, q4_segments.spans, target_header, target_segments);
  }
  const auto target = PageView::Make(shape, target_header, target_spans, Precision::kQ8);
  PAGODA_RETURN_IF_ERROR(target.status());
  if (!IsEncoded(target->precision())) {
    return absl::FailedPreconditionError("encode: the target's planes are not those of q8 to q2");
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
  if (!IsEncoded(target)) {
    return absl::InvalidArgumentError("encode: the target must be q8, q4, q3 or q2");
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

absl::StatusOr<PageHeader> PlanCutHeader(const PageHeader& encoded_header, Precision target,
                                         KLoLayers k_lo_layers) {
  const PageShape shape = ShapeOf(encoded_header);
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  PAGODA_RETURN_IF_ERROR(ValidateKLoLayers(k_lo_layers, shape.layer_count));
  if (!IsEncoded(target)) {
    return absl::InvalidArgumentError("cut: the target must be q8, q4, q3 or q2");
  }
  PageHeader header = encoded_header;
  header.planes.clear();
  header.segments.clear();
  AppendPlanes(target, shape, header, k_lo_layers);
  for (const PlaneEntry& plane : header.planes) {
    for (int32_t layer = plane.layer_begin; layer < plane.layer_begin + plane.layer_count;
         ++layer) {
      std::optional<PlaneId> source = PlaneIdOf(plane);
      while (source.has_value() && FindSegment(encoded_header, *source, layer) == nullptr) {
        source = RicherThan(*source);
      }
      if (source.has_value()) continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "cut: the page has no %s bits %d+%d of layer %d", plane.tensor == Tensor::kK ? "K" : "V",
          plane.bit_begin, plane.bit_count, layer));
    }
  }
  return header;
}

absl::Status CutPage(const PageHeader& source_header, absl::Span<const ByteSpan> source_segments,
                     PageHeader& target_header, absl::Span<const MutableByteSpan> target_segments) {
  const PageShape shape = ShapeOf(source_header);
  // Everything is checked here; what is left are additions.
  PAGODA_RETURN_IF_ERROR(PageView::Check(shape, source_header, source_segments));
  PAGODA_RETURN_IF_ERROR(PrepareTarget(target_header, target_segments));
  const std::vector<ByteSpan> target_spans(target_segments.begin(), target_segments.end());
  PAGODA_RETURN_IF_ERROR(PageView::Check(shape, target_header, target_spans));
  const CutSource source(shape, source_header, source_segments);
  for (const PlaneEntry& plane : target_header.planes) {
    for (uint32_t i = 0; i < plane.segment_count; ++i) {
      const uint32_t index = plane.first_segment + i;
      PAGODA_RETURN_IF_ERROR(CutSegment(*PlaneIdOf(plane), shape, source, target_segments[index],
                                        target_header.segments[index]));
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
