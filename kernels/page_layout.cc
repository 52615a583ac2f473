#include "kernels/page_layout.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"

namespace pagoda::kernels {
namespace {

constexpr int64_t kPartAlignBytes = 64;
constexpr int64_t kWordBytes = 2;  // bf16, fp16

absl::Status CheckRange(const char* field, int32_t value, int32_t low, int32_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("page shape: %s %d, accepted %d to %d", field, value, low, high));
}

int64_t ScaleBytes(const PageShape& shape) {
  return GroupsOf(shape.head_dim).count * shape.page_tokens * kWordBytes;
}

bool IsRaw(PlaneId plane) { return plane == PlaneId::kRaw16 || plane == PlaneId::kSinkRows; }

PlaneEntry Codes(Tensor tensor, uint8_t bit_begin, uint8_t bit_count) {
  PlaneEntry entry;
  entry.kind = PlaneKind::kCodes;
  entry.tensor = tensor;
  entry.bit_begin = bit_begin;
  entry.bit_count = bit_count;
  return entry;
}

PlaneEntry EntryOf(PlaneId plane) {
  PlaneEntry entry;
  switch (plane) {
    case PlaneId::kRaw16:
      entry.kind = PlaneKind::kRaw16;
      entry.bit_count = 16;
      return entry;
    case PlaneId::kSinkRows:
      entry.kind = PlaneKind::kRawRows;
      entry.bit_count = 16;
      entry.row_count = kSinkTokens;
      return entry;
    case PlaneId::kQuestDigest:
    case PlaneId::kCentreDigest:
    case PlaneId::kMeanDigest:
      entry.kind = plane == PlaneId::kQuestDigest    ? PlaneKind::kDigestQuest
                   : plane == PlaneId::kCentreDigest ? PlaneKind::kDigestCentre
                                                     : PlaneKind::kDigestMean;
      entry.tensor = Tensor::kK;
      entry.bit_count = 16;
      return entry;
    case PlaneId::kKHi:
      return Codes(Tensor::kK, 4, 4);
    case PlaneId::kVHi:
      return Codes(Tensor::kV, 4, 4);
    case PlaneId::kKLo:
      return Codes(Tensor::kK, 0, 4);
    case PlaneId::kVLo:
      return Codes(Tensor::kV, 0, 4);
    case PlaneId::kKTop3:
      return Codes(Tensor::kK, 5, 3);
    case PlaneId::kVTop3:
      return Codes(Tensor::kV, 5, 3);
    case PlaneId::kKTop2:
      return Codes(Tensor::kK, 6, 2);
    case PlaneId::kVTop2:
      return Codes(Tensor::kV, 6, 2);
  }
  return entry;
}

// As many whole layers as fit the target, at least one; sizes differ by one at most.
std::vector<LayerRun> SegmentRuns(LayerRun run, int64_t layer_bytes) {
  const int64_t layers_max = std::max<int64_t>(1, kSegmentBytesTarget / layer_bytes);
  const int64_t segment_count = (run.count + layers_max - 1) / layers_max;
  std::vector<LayerRun> runs;
  int64_t layer = run.begin;
  for (int64_t i = 0; i < segment_count; ++i) {
    const int64_t end = run.begin + (i + 1) * run.count / segment_count;
    runs.push_back({static_cast<int32_t>(layer), static_cast<int32_t>(end - layer)});
    layer = end;
  }
  PAGODA_CHECK(layer == run.begin + run.count);
  return runs;
}

// The entry with its segments. REQUIRES: entry's layers and heads are set.
void AppendEntry(PlaneEntry entry, int64_t layer_bytes, PageHeader& header) {
  const std::vector<LayerRun> runs =
      SegmentRuns({entry.layer_begin, entry.layer_count}, layer_bytes);
  entry.first_segment = static_cast<uint32_t>(header.segments.size());
  entry.segment_count = static_cast<uint32_t>(runs.size());
  header.planes.push_back(entry);
  for (const LayerRun& run : runs) {
    SegmentEntry segment;
    segment.length = static_cast<uint32_t>(run.count * layer_bytes);
    segment.layer_begin = static_cast<uint16_t>(run.begin);
    segment.layer_count = static_cast<uint16_t>(run.count);
    header.segments.push_back(segment);
  }
}

// Of the codes of a hi tile, in rows of 32 words: 16 words a row for two bits, 8 for the third.
int64_t TopCodesBytes(int64_t hi_codes_bytes, int bit_count) {
  const int64_t rows = hi_codes_bytes / 128;
  return AlignUp(rows * (bit_count == 3 ? 96 : 64), kPartAlignBytes);
}

}  // namespace

absl::Status ValidatePageShape(const PageShape& shape) {
  for (const absl::Status& status : {CheckRange("layer_count", shape.layer_count, 1, 512),
                                     CheckRange("head_count", shape.head_count, 1, 256),
                                     CheckRange("head_dim", shape.head_dim, 16, kHeadDimMax)}) {
    if (!status.ok()) return status;
  }
  if (shape.head_dim % kOctet != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("page shape: head_dim %d is not a multiple of 8", shape.head_dim));
  }
  for (int32_t tokens = kTileTokens; tokens <= kPageTokensMax; tokens *= 2) {
    if (shape.page_tokens == tokens) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "page shape: page_tokens %d, accepted 32, 64, 128 or 256", shape.page_tokens));
}

PageShape ShapeOf(const PageHeader& header) {
  PageShape shape;
  shape.layer_count = header.layer_count;
  shape.head_count = header.record.head_count;
  shape.head_dim = header.head_dim;
  shape.page_tokens = static_cast<int32_t>(std::min<uint32_t>(header.page_tokens, INT32_MAX));
  return shape;
}

TileBytes TileBytesOf(PlaneId plane, const PageShape& shape) {
  const int64_t row_bytes = shape.head_dim * kWordBytes;
  const int64_t v_dim = AlignUp(shape.head_dim, kTileTokens);
  switch (plane) {
    case PlaneId::kRaw16:
      return {shape.page_tokens * row_bytes, shape.page_tokens * row_bytes};
    case PlaneId::kSinkRows:
      return {kSinkTokens * row_bytes, kSinkTokens * row_bytes};
    case PlaneId::kKHi:
      return {MeanWords(shape.head_dim) * kWordBytes + ScaleBytes(shape),
              shape.page_tokens * shape.head_dim / 2};
    case PlaneId::kKLo:
      return {ScaleBytes(shape), shape.page_tokens * shape.head_dim / 2};
    case PlaneId::kVHi:
    case PlaneId::kVLo:
      return {ScaleBytes(shape), shape.page_tokens * v_dim / 2};
    case PlaneId::kKTop3:
    case PlaneId::kVTop3:
    case PlaneId::kKTop2:
    case PlaneId::kVTop2: {
      const bool k = plane == PlaneId::kKTop3 || plane == PlaneId::kKTop2;
      const bool three = plane == PlaneId::kKTop3 || plane == PlaneId::kVTop3;
      const TileBytes hi = TileBytesOf(k ? PlaneId::kKHi : PlaneId::kVHi, shape);
      return {hi.first, TopCodesBytes(hi.second, three ? 3 : 2)};
    }
    case PlaneId::kQuestDigest:
    case PlaneId::kCentreDigest:
    case PlaneId::kMeanDigest:
      return {AlignUp(shape.page_tokens / kDigestTokens * DigestRows(plane) * row_bytes,
                      kPartAlignBytes),
              0};
  }
  return {};
}

int64_t LayerBytes(PlaneId plane, const PageShape& shape) {
  const TileBytes tile = TileBytesOf(plane, shape);
  return shape.head_count * (tile.first + tile.second);
}

TileBytes TileOffsets(PlaneId plane, const PageShape& shape, int32_t segment_layers,
                      int32_t layer_in_segment, int32_t head) {
  const TileBytes tile = TileBytesOf(plane, shape);
  PAGODA_CHECK(tile.first % kPartAlignBytes == 0);
  PAGODA_CHECK(tile.second % kPartAlignBytes == 0);
  if (IsRaw(plane)) {
    const int64_t layer = layer_in_segment * LayerBytes(plane, shape);
    return {layer + head * tile.first, layer + shape.head_count * tile.first + head * tile.second};
  }
  const int64_t index = int64_t{layer_in_segment} * shape.head_count + head;
  const int64_t params_bytes = int64_t{segment_layers} * shape.head_count * tile.first;
  return {index * tile.first, params_bytes + index * tile.second};
}

void AppendPlane(PlaneId plane, const PageShape& shape, PageHeader& header) {
  AppendPlane(plane, {0, shape.layer_count}, shape, header);
}

void AppendPlane(PlaneId plane, LayerRun run, const PageShape& shape, PageHeader& header) {
  PlaneEntry entry = EntryOf(plane);
  entry.layer_begin = static_cast<uint16_t>(run.begin);
  entry.layer_count = static_cast<uint16_t>(run.count);
  entry.head_begin = header.record.head_begin;
  entry.head_count = static_cast<uint16_t>(shape.head_count);
  AppendEntry(entry, LayerBytes(plane, shape), header);
}

absl::Status ValidateOpaquePage(int64_t layer_count, int64_t layer_bytes) {
  if (layer_count < 1 || layer_count > 512) {
    return absl::InvalidArgumentError(
        absl::StrFormat("opaque page: layer_count %d, accepted 1 to 512", layer_count));
  }
  if (layer_bytes < 1 || layer_bytes > kOpaqueLayerBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "opaque page: opaque_layer_bytes %d, accepted 1 to %d", layer_bytes, kOpaqueLayerBytesMax));
  }
  return absl::OkStatus();
}

void AppendOpaquePlane(uint16_t layer_count, uint32_t layer_bytes, PageHeader& header) {
  PAGODA_CHECK(header.planes.empty());
  PlaneEntry entry;
  entry.kind = PlaneKind::kOpaque;
  entry.layer_count = layer_count;
  entry.head_begin = header.record.head_begin;
  entry.head_count = header.record.head_count;
  AppendEntry(entry, layer_bytes, header);
  AssignOffsets(header);
}

std::vector<LayerRun> OpaqueSegmentLayers(uint16_t layer_count, uint32_t layer_bytes) {
  return SegmentRuns({0, layer_count}, layer_bytes);
}

std::vector<LayerRun> RunsOf(KLoLayers layers) {
  std::vector<LayerRun> runs;
  for (const int32_t layer : layers) {
    if (runs.empty() || runs.back().begin + runs.back().count != layer) runs.push_back({layer, 0});
    ++runs.back().count;
  }
  return runs;
}

absl::Status ValidateKLoLayers(KLoLayers layers, int32_t layer_count) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] < 0 || layers[i] >= layer_count) {
      return absl::InvalidArgumentError(
          absl::StrFormat("layer %d, expected layers from 0 to %d", layers[i], layer_count - 1));
    }
    if (i > 0 && layers[i] <= layers[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("layer %d after %d, expected each once and in ascending order", layers[i],
                          layers[i - 1]));
    }
  }
  const size_t run_count = RunsOf(layers).size();
  if (run_count > kKLoRunsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d runs of neighbouring layers, a page holds %d; join some by adding the "
                        "layers between them",
                        run_count, kKLoRunsMax));
  }
  return absl::OkStatus();
}

std::optional<PlaneId> PlaneIdOf(const PlaneEntry& entry) {
  for (int32_t i = 0; i < kPlaneIdCount; ++i) {
    const auto plane = static_cast<PlaneId>(i);
    const PlaneEntry ours = EntryOf(plane);
    if (entry.kind == ours.kind && entry.tensor == ours.tensor &&
        entry.bit_begin == ours.bit_begin && entry.bit_count == ours.bit_count &&
        entry.row_begin == ours.row_begin && entry.row_count == ours.row_count) {
      return plane;
    }
  }
  return std::nullopt;
}

void AppendPlanes(Precision precision, const PageShape& shape, PageHeader& header,
                  KLoLayers k_lo_layers) {
  PAGODA_CHECK(header.planes.empty());
  PAGODA_CHECK(header.segments.empty());
  const auto append = [&](std::initializer_list<PlaneId> planes) {
    for (const PlaneId plane : planes) AppendPlane(plane, shape, header);
  };
  switch (precision) {
    case Precision::kRaw16:
      append({PlaneId::kRaw16});
      break;
    case Precision::kQ8:
      append({PlaneId::kKHi, PlaneId::kVHi, PlaneId::kKLo, PlaneId::kVLo});
      break;
    case Precision::kQ4:
      append({PlaneId::kKHi, PlaneId::kVHi});
      for (const LayerRun& run : RunsOf(k_lo_layers)) {
        AppendPlane(PlaneId::kKLo, run, shape, header);
      }
      break;
    case Precision::kQ3:
      append({PlaneId::kKTop3, PlaneId::kVTop3});
      break;
    case Precision::kQ2:
      append({PlaneId::kKTop2, PlaneId::kVTop2});
      break;
    case Precision::kNone:
    case Precision::kOpaque:
      PAGODA_CHECK(false);
  }
  if (precision != Precision::kRaw16 && header.base_position == 0) append({PlaneId::kSinkRows});
  AssignOffsets(header);
}

}  // namespace pagoda::kernels
