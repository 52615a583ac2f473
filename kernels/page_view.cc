#include "kernels/page_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/top_codes.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda::kernels {
namespace {

constexpr uintptr_t kPartAlignBytes = 64;

absl::Status CheckFrame(PlaneId plane, const PageShape& shape, const PageHeader& header,
                        const PlaneEntry& entry) {
  if (entry.head_begin != header.record.head_begin || entry.head_count != shape.head_count) {
    return absl::FailedPreconditionError(
        absl::StrFormat("page view: plane of heads %d+%d, page has %d+%d", entry.head_begin,
                        entry.head_count, header.record.head_begin, shape.head_count));
  }
  // Always in the raw frame.
  if (plane == PlaneId::kSinkRows || IsDigest(plane)) return absl::OkStatus();
  const bool raw = plane == PlaneId::kRaw16;
  const Rotation rotation = raw ? Rotation::kNone : Rotation::kHadamardV1;
  const CodeRecipe recipe = raw ? CodeRecipe::kNone : CodeRecipe::kEmbedded8;
  if (header.rotation != rotation || header.recipe != recipe) {
    return absl::FailedPreconditionError(
        absl::StrFormat("page view: rotation %d and recipe %d do not fit its planes",
                        static_cast<int>(header.rotation), static_cast<int>(header.recipe)));
  }
  return absl::OkStatus();
}

// The segment fits its plane and, if its bytes are here, they are complete.
absl::Status CheckSegment(PlaneId plane, const PageShape& shape, const PlaneEntry& entry,
                          const SegmentEntry& segment, ByteSpan bytes) {
  const int32_t layer_end = segment.layer_begin + segment.layer_count;
  const bool layers_ok = segment.layer_count > 0 && segment.layer_begin >= entry.layer_begin &&
                         layer_end <= entry.layer_begin + entry.layer_count &&
                         layer_end <= shape.layer_count;
  if (!layers_ok || int64_t{segment.length} != segment.layer_count * LayerBytes(plane, shape)) {
    return absl::DataLossError(
        absl::StrFormat("page view: segment of %d bytes for layers %d+%d does not fit its plane",
                        segment.length, segment.layer_begin, segment.layer_count));
  }
  if (bytes.data() == nullptr) return absl::OkStatus();
  if (bytes.size() < segment.length) {
    return absl::InvalidArgumentError(
        absl::StrFormat("page view: %d bytes of a segment of %d", bytes.size(), segment.length));
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kPartAlignBytes != 0) {
    return absl::InvalidArgumentError("page view: segment is not 64-byte aligned");
  }
  return absl::OkStatus();
}

const uint16_t* Words16(const std::byte* bytes) { return reinterpret_cast<const uint16_t*>(bytes); }
const uint32_t* Words32(const std::byte* bytes) { return reinterpret_cast<const uint32_t*>(bytes); }

}  // namespace

absl::StatusOr<PageView> PageView::Make(const PageShape& shape, const PageHeader& header,
                                        absl::Span<const ByteSpan> segments, Precision at_most,
                                        KLoLayers k_lo_layers) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  if (at_most != Precision::kRaw16 && at_most != Precision::kQ8 && at_most != Precision::kQ4) {
    return absl::InvalidArgumentError("page view: at_most must be raw16, q8 or q4");
  }
  PAGODA_RETURN_IF_ERROR(ValidateKLoLayers(k_lo_layers, shape.layer_count));
  PAGODA_ASSIGN_OR_RETURN(PageView view, FromTables(shape, header, segments));
  view.SettlePrecisions(at_most, k_lo_layers);
  view.Widen();
  return view;
}

absl::Status PageView::Check(const PageShape& shape, const PageHeader& header,
                             absl::Span<const ByteSpan> segments) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  return FromTables(shape, header, segments).status();
}

absl::StatusOr<PageView> PageView::FromTables(const PageShape& shape, const PageHeader& header,
                                              absl::Span<const ByteSpan> segments) {
  if (ShapeOf(header) != shape) {
    return absl::FailedPreconditionError("page view: the header states another shape");
  }
  if (segments.size() != header.segments.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("page view: %d spans for %d segments",
                                                      segments.size(), header.segments.size()));
  }
  if (header.base_position > uint64_t{INT64_MAX} - kPageTokensMax) {
    return absl::DataLossError("page view: base position is out of range");
  }

  PageView view(shape);
  view.base_position_ = static_cast<int64_t>(header.base_position);
  view.layers_.resize(static_cast<size_t>(shape.layer_count));
  for (const PlaneEntry& entry : header.planes) {
    const std::optional<PlaneId> plane = PlaneIdOf(entry);
    if (!plane.has_value() || entry.storage == PlaneStorage::kDelta) continue;
    absl::Status status = CheckFrame(*plane, shape, header, entry);
    if (status.ok()) status = view.AddPlane(*plane, header, entry, segments);
    if (status.ok()) continue;
    if (!IsDigest(*plane)) return status;
    // A digest may be left out of any page: one of another kind makes no page unreadable.
    for (Layer& layer : view.layers_) layer.parts[static_cast<size_t>(*plane)] = {};
  }
  return view;
}

absl::Status PageView::AddPlane(PlaneId plane, const PageHeader& header, const PlaneEntry& entry,
                                absl::Span<const ByteSpan> segments) {
  const auto plane_index = static_cast<size_t>(plane);
  sinks_listed_ |= plane == PlaneId::kSinkRows;
  tile_bytes_[plane_index] = TileBytesOf(plane, shape_);
  if (entry.first_segment > header.segments.size() ||
      entry.segment_count > header.segments.size() - entry.first_segment) {
    return absl::DataLossError("page view: plane names segments that do not exist");
  }
  for (uint32_t i = 0; i < entry.segment_count; ++i) {
    const SegmentEntry& segment = header.segments[entry.first_segment + i];
    const ByteSpan bytes = segments[entry.first_segment + i];
    PAGODA_RETURN_IF_ERROR(CheckSegment(plane, shape_, entry, segment, bytes));
    for (int32_t j = 0; j < segment.layer_count; ++j) {
      Layer& layer = layers_[static_cast<size_t>(segment.layer_begin + j)];
      if (layer.listed[plane_index]) {
        return absl::DataLossError("page view: a layer of a plane is there twice");
      }
      layer.listed[plane_index] = true;
      if (bytes.data() == nullptr) continue;
      const TileBytes at = TileOffsets(plane, shape_, segment.layer_count, j, /*head=*/0);
      layer.parts[plane_index] = {bytes.data() + at.first, bytes.data() + at.second};
    }
  }
  return absl::OkStatus();
}

void PageView::SettlePrecisions(Precision at_most, KLoLayers k_lo_layers) {
  auto next_k_lo = k_lo_layers.begin();
  for (size_t index = 0; index < layers_.size(); ++index) {
    Layer& layer = layers_[index];
    const bool asks_k_lo = at_most < Precision::kQ8 && next_k_lo != k_lo_layers.end() &&
                           static_cast<size_t>(*next_k_lo) == index;
    if (asks_k_lo) ++next_k_lo;
    const auto has = [&layer](PlaneId plane) {
      return layer.parts[static_cast<size_t>(plane)].first != nullptr;
    };
    if (at_most < Precision::kQ8) {
      if (!asks_k_lo) layer.parts[static_cast<size_t>(PlaneId::kKLo)] = {};
      layer.parts[static_cast<size_t>(PlaneId::kVLo)] = {};
    }
    // The bits from the top of the code that K and V have, lo aside.
    const auto bits = [&has](PlaneId hi, PlaneId top3, PlaneId top2) {
      return has(hi) ? 4 : has(top3) ? 3 : has(top2) ? 2 : 0;
    };
    const int hi_bits = std::min(bits(PlaneId::kKHi, PlaneId::kKTop3, PlaneId::kKTop2),
                                 bits(PlaneId::kVHi, PlaneId::kVTop3, PlaneId::kVTop2));
    // Below q4 no profile asks for anything.
    const bool codes = hi_bits > 0 && (!sinks_listed_ || has(PlaneId::kSinkRows)) &&
                       (hi_bits < 4 || !asks_k_lo || has(PlaneId::kKLo));
    if (has(PlaneId::kRaw16) && (at_most == Precision::kRaw16 || !codes)) {
      layer.precision = Precision::kRaw16;
    } else if (codes && hi_bits == 4) {
      const bool both = has(PlaneId::kKLo) && has(PlaneId::kVLo);
      layer.precision = both ? Precision::kQ8 : Precision::kQ4;
    } else if (codes) {
      // Lo without all of hi means nothing.
      layer.parts[static_cast<size_t>(PlaneId::kKLo)] = {};
      layer.parts[static_cast<size_t>(PlaneId::kVLo)] = {};
      layer.precision = hi_bits == 3 ? Precision::kQ3 : Precision::kQ2;
    }
  }
}

void PageView::Widen() {
  struct Source {
    PlaneId hi, top3, top2;
    bool is_k;
  };
  constexpr Source kTensors[] = {
      {PlaneId::kKHi, PlaneId::kKTop3, PlaneId::kKTop2, /*is_k=*/true},
      {PlaneId::kVHi, PlaneId::kVTop3, PlaneId::kVTop2, /*is_k=*/false},
  };
  const auto needs = [](const Layer& layer, const Source& tensor) {
    return (layer.precision == Precision::kQ3 || layer.precision == Precision::kQ2) &&
           layer.parts[static_cast<size_t>(tensor.hi)].first == nullptr;
  };
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const Source& tensor : kTensors) {
      if (needs(layer, tensor)) bytes += LayerBytes(tensor.hi, shape_);
    }
  }
  if (bytes == 0) return;
  auto widened = std::make_shared<AlignedBuffer>(AlignedBuffer::Uninitialized(bytes));
  std::byte* at = widened->data();
  for (const Source& tensor : kTensors) {
    const TileBytes tile = tile_bytes_[static_cast<size_t>(tensor.hi)] =
        TileBytesOf(tensor.hi, shape_);
    const CodesShape shape{shape_.head_dim, shape_.page_tokens, tensor.is_k};
    for (Layer& layer : layers_) {
      if (!needs(layer, tensor)) continue;
      const bool three = layer.parts[static_cast<size_t>(tensor.top3)].first != nullptr;
      const auto source = static_cast<size_t>(three ? tensor.top3 : tensor.top2);
      const TileBytes codes_at = TileOffsets(tensor.hi, shape_, 1, 0, 0);
      for (int32_t head = 0; head < shape_.head_count; ++head) {
        const Part& part = layer.parts[source];
        const TileBytes& step = tile_bytes_[source];
        const TileCodes from{Words16(part.first + head * step.first),
                             Words32(part.second + head * step.second)};
        const MutableTileCodes to{
            reinterpret_cast<uint16_t*>(at + head * tile.first),
            reinterpret_cast<uint32_t*>(at + codes_at.second + head * tile.second)};
        three ? WidenTop3(shape, from, to) : WidenTop2(shape, from, to);
      }
      layer.parts[static_cast<size_t>(tensor.hi)] = {at, at + codes_at.second};
      at += LayerBytes(tensor.hi, shape_);
    }
  }
  widened_ = std::move(widened);
}

Precision PageView::precision() const {
  Precision lowest = Precision::kRaw16;
  for (const Layer& layer : layers_) lowest = std::min(lowest, layer.precision);
  return lowest;
}

const uint16_t* PageView::digest(PlaneId digest, int32_t layer, int32_t head) const {
  PAGODA_CHECK(IsDigest(digest));
  PAGODA_CHECK(layer >= 0 && layer < shape_.layer_count);
  PAGODA_CHECK(head >= 0 && head < shape_.head_count);
  const auto index = static_cast<size_t>(digest);
  const std::byte* first_head = layers_[static_cast<size_t>(layer)].parts[index].first;
  return first_head == nullptr ? nullptr : Words16(first_head + head * tile_bytes_[index].first);
}

PageTile PageView::tile(int32_t layer, int32_t head) const {
  PAGODA_CHECK(layer >= 0 && layer < shape_.layer_count);
  PAGODA_CHECK(head >= 0 && head < shape_.head_count);
  const Layer& source = layers_[static_cast<size_t>(layer)];
  PAGODA_CHECK(source.precision != Precision::kNone);

  // Both parts of a plane's tile; null when the plane is absent.
  const auto part = [&](PlaneId plane) -> Part {
    const Part& first_head = source.parts[static_cast<size_t>(plane)];
    if (first_head.first == nullptr) return {};
    const TileBytes& bytes = tile_bytes_[static_cast<size_t>(plane)];
    return {first_head.first + head * bytes.first, first_head.second + head * bytes.second};
  };
  PageTile tile;
  tile.precision = std::max(source.precision, Precision::kQ4);
  tile.token_count = shape_.page_tokens;
  tile.base_position = base_position_;
  if (source.precision == Precision::kRaw16) {
    const Part raw = part(PlaneId::kRaw16);
    tile.raw_k = Words16(raw.first);
    tile.raw_v = Words16(raw.second);
    return tile;
  }
  const Part k_hi = part(PlaneId::kKHi);
  const Part v_hi = part(PlaneId::kVHi);
  const Part k_lo = part(PlaneId::kKLo);
  const Part v_lo = part(PlaneId::kVLo);
  const Part sinks = part(PlaneId::kSinkRows);
  tile.k_hi_params = Words16(k_hi.first);
  tile.v_hi_params = Words16(v_hi.first);
  tile.k_lo_params = Words16(k_lo.first);
  tile.v_lo_params = Words16(v_lo.first);
  tile.k_hi = Words32(k_hi.second);
  tile.v_hi = Words32(v_hi.second);
  tile.k_lo = Words32(k_lo.second);
  tile.v_lo = Words32(v_lo.second);
  tile.sink_k = Words16(sinks.first);
  tile.sink_v = Words16(sinks.second);
  tile.sink_count = sinks.first == nullptr ? 0 : kSinkTokens;
  return tile;
}

}  // namespace pagoda::kernels
