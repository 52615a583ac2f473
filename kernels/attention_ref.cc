// The specification of attention.h: rows of K and V in double, one softmax per row, no tricks.
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/attention_rows_ref.h"
#include "kernels/codec.h"
#include "storage/base/status_macros.h"

namespace pagoda::kernels {
namespace {

// One row: q and out [head_dim]. Returns log2 of the sum.
double AttendRow(const std::vector<DecodedTile>& tiles, const float* q, int64_t position,
                 const AttentionParams& p, float* out) {
  std::vector<double> logits;
  std::vector<const double*> values;
  double max = -std::numeric_limits<double>::infinity();
  for (const DecodedTile& tile : tiles) {
    for (int32_t t = 0; t < tile.token_count && tile.base_position + t <= position; ++t) {
      double dot = 0;
      for (int32_t c = 0; c < p.head_dim; ++c) dot += q[c] * tile.k[t * p.head_dim + c];
      logits.push_back(dot * p.softmax_scale * std::log2(std::exp(1.0)));
      values.push_back(&tile.v[t * p.head_dim]);
      max = std::max(max, logits.back());
    }
  }
  std::vector<double> sum_v(static_cast<size_t>(p.head_dim));
  double sum = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    const double weight = std::exp2(logits[t] - max);
    sum += weight;
    for (int32_t c = 0; c < p.head_dim; ++c) sum_v[c] += weight * values[t][c];
  }
  for (int32_t c = 0; c < p.head_dim; ++c) {
    out[c] = logits.empty() ? 0.0f : static_cast<float>(sum_v[c] / sum);
  }
  return logits.empty() ? max : max + std::log2(sum);
}

}  // namespace

absl::Status ValidateAttention(const AttentionParams& p) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(PageShape{1, 1, p.head_dim, p.page_tokens}));
  if (p.group_count < 1 || p.group_count > 64 || p.query_count < 1 || p.query_count > 65536) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attention: %d queries of %d heads, accepted 1 to 65536 of 1 to 64",
                        p.query_count, p.group_count));
  }
  const int64_t row_floats = int64_t{p.group_count} * p.head_dim;
  if (p.q == nullptr || p.out == nullptr || p.q_stride < row_floats || p.out_stride < row_floats) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attention: strides %d and %d, a query has %d floats", p.q_stride,
                        p.out_stride, row_floats));
  }
  const int64_t position_max = int64_t{1} << 40;
  if (p.first_position < 0 || p.first_position > position_max || !std::isfinite(p.softmax_scale)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "attention: first position %d, softmax scale %g", p.first_position, p.softmax_scale));
  }
  int64_t position = 0;
  for (const PageTile& tile : p.pages) {
    PAGODA_RETURN_IF_ERROR(ValidateTile(tile, p.page_tokens));
    if (tile.base_position < position || tile.base_position > position_max) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "attention: a tile at position %d follows one at %d", tile.base_position, position));
    }
    position = tile.base_position;
  }
  return absl::OkStatus();
}

absl::Status DecodeTilesRef(absl::Span<const PageTile> pages, int32_t head_dim, int32_t page_tokens,
                            std::vector<DecodedTile>& tiles) {
  const PageShape shape{1, 1, head_dim, page_tokens};
  for (const PageTile& tile : pages) {
    const auto size = static_cast<size_t>(tile.token_count * head_dim);
    tiles.push_back({tile.base_position, tile.token_count, std::vector<double>(size),
                     std::vector<double>(size)});
    PAGODA_RETURN_IF_ERROR(
        DecodeTileRef(tile, shape, tiles.back().k.data(), tiles.back().v.data()));
  }
  return absl::OkStatus();
}

void AttendRowsRef(const AttentionParams& p, const std::vector<DecodedTile>& tiles) {
  for (int32_t i = 0; i < p.query_count; ++i) {
    for (int32_t g = 0; g < p.group_count; ++g) {
      const int64_t head = int64_t{g} * p.head_dim;
      const double lse2 = AttendRow(tiles, p.q + i * p.q_stride + head, p.first_position + i, p,
                                    p.out + i * p.out_stride + head);
      if (p.lse2 != nullptr) p.lse2[i * p.group_count + g] = static_cast<float>(lse2);
    }
  }
}

absl::Status AttentionRef(const AttentionParams& p) {
  PAGODA_RETURN_IF_ERROR(ValidateAttention(p));
  std::vector<DecodedTile> tiles;
  PAGODA_RETURN_IF_ERROR(DecodeTilesRef(p.pages, p.head_dim, p.page_tokens, tiles));
  AttendRowsRef(p, tiles);
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
