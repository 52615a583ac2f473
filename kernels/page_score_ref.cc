// The specification of page_score.h, in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/codec.h"
#include "kernels/digest_words.h"
#include "kernels/page_score.h"
#include "storage/base/status_macros.h"

namespace pagoda::kernels {
namespace {

float FloatBelow(double x) {
  const auto rounded = static_cast<float>(x);
  const float lowest = -std::numeric_limits<float>::infinity();
  return rounded > x ? std::nextafter(rounded, lowest) : rounded;
}

absl::Status NotADigest(PlaneId digest) {
  return absl::InvalidArgumentError(
      absl::StrFormat("page score: plane %d is not a digest", static_cast<int>(digest)));
}

struct Column {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double distance = 0;  // mean of |k - middle|
};

// Of one channel, over tokens begin to end.
Column ColumnOf(const std::vector<double>& k, int32_t head_dim, int32_t c, int32_t begin,
                int32_t end) {
  Column column;
  for (int32_t t = begin; t < end; ++t) {
    const double x = k[t * head_dim + c];
    column.low = std::min(column.low, x);
    column.high = std::max(column.high, x);
    column.mean += x / (end - begin);
  }
  for (int32_t t = begin; t < end; ++t) {
    const double middle = (column.low + column.high) / 2;
    column.distance += std::fabs(k[t * head_dim + c] - middle) / (end - begin);
  }
  return column;
}

}  // namespace

absl::Status ValidateDigest(PlaneId digest, const PageTile& tile, const PageShape& shape,
                            const uint16_t* words) {
  if (!IsDigest(digest)) return NotADigest(digest);
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  PAGODA_RETURN_IF_ERROR(ValidateTile(tile, shape.page_tokens));
  if (words == nullptr) return absl::InvalidArgumentError("page score: no memory for the digest");
  return absl::OkStatus();
}

absl::Status ValidatePageScore(const PageScoreParams& p) {
  if (!IsDigest(p.digest)) return NotADigest(p.digest);
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(PageShape{1, 1, p.head_dim, p.page_tokens}));
  if (p.group_count < 1 || p.group_count > 64 || p.q == nullptr || p.scores == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "page score: %d query heads, accepted 1 to 64, or a null pointer", p.group_count));
  }
  for (const DigestTile& tile : p.tiles) {
    if (tile.words == nullptr || tile.token_count < 0 || tile.token_count > p.page_tokens) {
      return absl::InvalidArgumentError(
          absl::StrFormat("page score: a digest of %d tokens, accepted 0 to %d, or without words",
                          tile.token_count, p.page_tokens));
    }
  }
  return absl::OkStatus();
}

absl::Status BuildDigestRef(PlaneId digest, const PageTile& tile, const PageShape& shape,
                            uint16_t* words) {
  PAGODA_RETURN_IF_ERROR(ValidateDigest(digest, tile, shape, words));
  const int32_t dim = shape.head_dim;
  std::vector<double> k(static_cast<size_t>(shape.page_tokens * dim));
  std::vector<double> v(k.size());
  PAGODA_RETURN_IF_ERROR(DecodeTileRef(tile, shape, k.data(), v.data()));
  std::fill_n(words, TileBytesOf(digest, shape).first / 2, uint16_t{0});
  const int32_t rows = DigestRows(digest);
  for (int32_t begin = 0; begin < tile.token_count; begin += kDigestTokens) {
    uint16_t* unit = words + begin / kDigestTokens * rows * dim;
    for (int32_t c = 0; c < dim; ++c) {
      const Column column =
          ColumnOf(k, dim, c, begin, std::min(begin + kDigestTokens, tile.token_count));
      const double middle = (column.low + column.high) / 2;
      if (digest == PlaneId::kQuestDigest) {
        unit[c] = Bf16Below(FloatBelow(column.low));
        unit[dim + c] = Bf16Above(-FloatBelow(-column.high));
      } else if (digest == PlaneId::kCentreDigest) {
        unit[c] = Bf16FromFloat(static_cast<float>(middle - column.distance));
        unit[dim + c] = Bf16FromFloat(static_cast<float>(middle + column.distance));
      } else {
        unit[c] = Bf16FromFloat(static_cast<float>(column.mean));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ScorePagesRef(const PageScoreParams& p) {
  PAGODA_RETURN_IF_ERROR(ValidatePageScore(p));
  const int32_t units = p.page_tokens / kDigestTokens;
  const int32_t rows = DigestRows(p.digest);
  float* score = p.scores;
  for (int32_t g = 0; g < p.group_count; ++g) {
    const float* q = p.q + int64_t{g} * p.head_dim;
    for (const DigestTile& tile : p.tiles) {
      for (int32_t unit = 0; unit < units; ++unit) {
        const uint16_t* low = tile.words + unit * rows * p.head_dim;
        const uint16_t* high = low + (rows - 1) * p.head_dim;  // of a mean: the same row
        double sum = 0;
        double magnitude = 0;
        for (int32_t c = 0; c < p.head_dim; ++c) {
          const double x = q[c];
          const double product = std::max(x * FloatFromBf16(low[c]), x * FloatFromBf16(high[c]));
          sum += product;
          magnitude += std::abs(product);
        }
        // A bound is one for the sum's own rounding too.
        if (p.digest == PlaneId::kQuestDigest) sum += p.head_dim * 0x1p-52 * magnitude;
        const bool empty = unit * kDigestTokens >= tile.token_count;
        *score++ = empty ? -std::numeric_limits<float>::infinity() : -FloatBelow(-sum);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
