// The checks of every op, and its launch.
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/codec.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/launchers.h"
#include "storage/base/status_macros.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int32_t kSplitsMax = 1024;
constexpr int32_t kTilesMax = 1 << 20;
constexpr int32_t kDigestTilesMax = 32768;
constexpr int32_t kTurnedRowsMax = 1 << 22;
constexpr int32_t kGridMax = 65535;  // a grid's second and third dimension

absl::Status FromLaunch(const char* op, const char* error) {
  if (error == nullptr) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s: launch failed: %s", op, error));
}

absl::Status CheckHeadDim(const char* op, int32_t head_dim) {
  for (const int32_t known : {64, 80, 96, 128, 256}) {
    if (head_dim == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: head_dim %d has no CUDA kernel, accepted 64, 80, 96, 128, 256", op, head_dim));
}

absl::Status CheckCount(const char* op, const char* field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s %d, accepted 1 to %d", op, field, value, max));
}

absl::Status CheckPointers(const char* op, std::initializer_list<const void*> pointers) {
  int32_t index = 0;
  for (const void* pointer : pointers) {
    if (pointer == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: pointer %d of the parameters is null", op, index));
    }
    ++index;
  }
  return absl::OkStatus();
}

absl::Status CheckDigest(const char* op, PlaneId digest) {
  if (IsDigest(digest)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: plane %d is not a digest", op, static_cast<int>(digest)));
}

bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

absl::Status DecodeAttentionCuda(const DecodeParams& p, Stream stream) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(PageShape{1, 1, p.head_dim, p.page_tokens}));
  PAGODA_RETURN_IF_ERROR(CheckHeadDim("decode", p.head_dim));
  PAGODA_RETURN_IF_ERROR(CheckCount("decode", "sequence_count", p.sequence_count, kGridMax));
  PAGODA_RETURN_IF_ERROR(CheckCount("decode", "kv_head_count", p.kv_head_count, 256));
  PAGODA_RETURN_IF_ERROR(CheckCount("decode", "group_count", p.group_count, 64));
  PAGODA_RETURN_IF_ERROR(CheckCount("decode", "split_count", p.split_count, kSplitsMax));
  PAGODA_RETURN_IF_ERROR(
      CheckPointers("decode", {p.q, p.tile_begin, p.position, p.part_o, p.part_lse2}));
  if (!std::isfinite(p.softmax_scale)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("decode: softmax scale %g is not finite", p.softmax_scale));
  }
  const bool lanes =
      p.unit == DecodeUnit::kLanes || (p.unit == DecodeUnit::kBest && p.group_count == 1);
  return FromLaunch("decode", lanes ? LaunchDecode(p, stream) : LaunchDecodeMma(p, stream));
}

absl::Status MergeStatesCuda(const MergeParams& p, Stream stream) {
  PAGODA_RETURN_IF_ERROR(CheckCount("merge", "row_count", p.row_count, int64_t{1} << 31));
  PAGODA_RETURN_IF_ERROR(CheckCount("merge", "part_count", p.part_count, 2 * kSplitsMax));
  PAGODA_RETURN_IF_ERROR(CheckCount("merge", "head_dim", p.head_dim, kHeadDimMax));
  PAGODA_RETURN_IF_ERROR(CheckPointers("merge", {p.part_o, p.part_lse2, p.o, p.lse2}));
  return FromLaunch("merge", LaunchMerge(p, stream));
}

absl::Status EncodeTilesCuda(const EncodeParams& p, Stream stream) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(PageShape{1, 1, p.head_dim, p.page_tokens}));
  PAGODA_RETURN_IF_ERROR(CheckHeadDim("encode", p.head_dim));
  PAGODA_RETURN_IF_ERROR(CheckCount("encode", "tile_count", p.tile_count, kTilesMax));
  PAGODA_RETURN_IF_ERROR(CheckPointers("encode", {p.tiles, p.refused}));
  return FromLaunch("encode", LaunchEncode(p, stream));
}

absl::Status DequantizeTilesCuda(const DequantizeParams& p, Stream stream) {
  PAGODA_RETURN_IF_ERROR(
      ValidatePageShape(PageShape{1, p.kv_head_count, p.head_dim, p.page_tokens}));
  PAGODA_RETURN_IF_ERROR(CheckHeadDim("dequantize", p.head_dim));
  PAGODA_RETURN_IF_ERROR(CheckCount("dequantize", "tile_count", p.tile_count, kTilesMax));
  PAGODA_RETURN_IF_ERROR(CheckPointers("dequantize", {p.tiles, p.target_offset, p.k, p.v}));
  return FromLaunch("dequantize", LaunchDequantize(p, stream));
}

absl::Status GatherCuda(const GatherParams& p, Stream stream) {
  PAGODA_RETURN_IF_ERROR(CheckCount("gather", "piece_count", p.piece_count, kGridMax));
  PAGODA_RETURN_IF_ERROR(CheckCount("gather", "bytes_max", p.bytes_max, int64_t{1} << 40));
  PAGODA_RETURN_IF_ERROR(CheckPointers("gather", {p.pieces}));
  return FromLaunch("gather", LaunchGather(p, stream));
}

absl::Status BuildDigestsCuda(const BuildDigestParams& p, Stream stream) {
  PAGODA_RETURN_IF_ERROR(CheckDigest("build digests", p.digest));
  PAGODA_RETURN_IF_ERROR(
      ValidatePageShape(PageShape{1, p.kv_head_count, p.head_dim, p.page_tokens}));
  PAGODA_RETURN_IF_ERROR(CheckHeadDim("build digests", p.head_dim));
  PAGODA_RETURN_IF_ERROR(CheckCount("build digests", "tile_count", p.tile_count, kDigestTilesMax));
  PAGODA_RETURN_IF_ERROR(CheckPointers("build digests", {p.tiles, p.words}));
  return FromLaunch("build digests", LaunchBuildDigests(p, stream));
}

absl::Status ScorePagesCuda(const DeviceScoreParams& p, Stream stream) {
  PAGODA_RETURN_IF_ERROR(CheckDigest("score pages", p.digest));
  PAGODA_RETURN_IF_ERROR(
      ValidatePageShape(PageShape{1, p.kv_head_count, p.head_dim, p.page_tokens}));
  PAGODA_RETURN_IF_ERROR(CheckHeadDim("score pages", p.head_dim));
  PAGODA_RETURN_IF_ERROR(CheckCount("score pages", "tile_count", p.tile_count, kDigestTilesMax));
  PAGODA_RETURN_IF_ERROR(CheckCount("score pages", "group_count", p.group_count, 64));
  PAGODA_RETURN_IF_ERROR(CheckPointers("score pages", {p.q, p.tiles, p.scores}));
  return FromLaunch("score pages", LaunchScorePages(p, stream));
}

absl::Status TurnQueriesCuda(const TurnQueriesParams& p, Stream stream) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(PageShape{1, 1, p.head_dim, kTileTokens}));
  PAGODA_RETURN_IF_ERROR(ValidateShift(p.rope, p.shift, p.head_dim));
  PAGODA_RETURN_IF_ERROR(CheckCount("turn queries", "row_count", p.row_count, kTurnedRowsMax));
  PAGODA_RETURN_IF_ERROR(CheckPointers("turn queries", {p.q, p.turned}));
  return FromLaunch("turn queries", LaunchTurnQueries(p, stream));
}

absl::Status ValidateDeviceTiles(absl::Span<const PageTile> tiles, int32_t page_tokens) {
  for (const PageTile& tile : tiles) {
    PAGODA_RETURN_IF_ERROR(ValidateTile(tile, page_tokens));
    if (tile.sink_count > kSinkTokens) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tile at position %d: %d sink rows, at most %d on the device",
                          tile.base_position, tile.sink_count, kSinkTokens));
    }
    for (const void* part :
         {static_cast<const void*>(tile.raw_k), static_cast<const void*>(tile.raw_v),
          static_cast<const void*>(tile.sink_k), static_cast<const void*>(tile.sink_v),
          static_cast<const void*>(tile.k_hi), static_cast<const void*>(tile.v_hi),
          static_cast<const void*>(tile.k_lo), static_cast<const void*>(tile.v_lo),
          static_cast<const void*>(tile.k_hi_params), static_cast<const void*>(tile.v_hi_params),
          static_cast<const void*>(tile.k_lo_params), static_cast<const void*>(tile.v_lo_params)}) {
      if (!IsAligned(part)) {
        return absl::InvalidArgumentError(
            absl::StrFormat("tile at position %d: a part at %p, a multiple of 16 is needed",
                            tile.base_position, part));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cuda
