// The specification of codec.h, element by element.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/codec.h"
#include "kernels/codec_input.h"
#include "kernels/float16.h"
#include "kernels/hadamard.h"
#include "storage/base/status_macros.h"

namespace pagoda::kernels {
namespace {

struct TensorTarget {
  uint16_t* a4;
  uint16_t* stored_a8;  // 16 * a8; null: hi alone
  uint32_t* hi;
  uint32_t* lo;
  bool is_k;
};

// Sets the nibble of (channel, token), both of the tile.
void PutNibble(uint32_t* words, bool is_k, int32_t head_dim, int32_t channel, int32_t token,
               uint32_t nibble) {
  const int32_t block = token / kTileTokens;
  const int32_t t = token % kTileTokens;
  const int32_t element = is_k ? channel % kOctet : t % kOctet;
  const int64_t word =
      is_k
          ? (int64_t{block} * (head_dim / kOctet) + channel / kOctet) * kTileTokens + t
          : ((int64_t{block} * (AlignUp(head_dim, 32) / 32) + channel / 32) * 4 + t / kOctet) * 32 +
                channel % 32;
  const int32_t shift = element % 4 * 8 + element / 4 * 4;
  words[word] = (words[word] & ~(15u << shift)) | nibble << shift;
}

absl::Status EncodeGroup(const float* y, int32_t begin, int32_t end, int32_t group, int32_t token,
                         const EncodeTileParams& p, const TensorTarget& target) {
  float m = 1e-12f;
  for (int32_t c = begin; c < end; ++c) m = std::max(m, std::fabs(y[c]));
  if (m > kEncodeMagnitudeMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "encode: rotated magnitude %g, the codec holds %g", m, kEncodeMagnitudeMax));
  }
  const float inv = 127.5f / m;
  float yy = 0, yl8 = 0, ll8 = 0, yl4 = 0, ll4 = 0;
  for (int32_t c = begin; c < end; ++c) {
    const float code = std::clamp(std::floor(y[c] * inv), -128.0f, 127.0f);
    const float level8 = code + 0.5f;
    const float level4 = std::floor(code * 0.0625f) + 0.5f;
    yy += y[c] * y[c];
    yl8 += y[c] * level8;
    ll8 += level8 * level8;
    yl4 += y[c] * level4;
    ll4 += level4 * level4;
    const auto u = static_cast<uint32_t>(static_cast<int32_t>(code) + 128);
    PutNibble(target.hi, target.is_k, p.head_dim, c, token, u >> 4);
    if (target.lo != nullptr) PutNibble(target.lo, target.is_k, p.head_dim, c, token, u & 15);
  }
  const float a8 = target.is_k ? yy / std::max(yl8, 1e-20f) : yl8 / ll8;
  const float a4 = target.is_k ? yy / std::max(yl4, 1e-20f) : yl4 / ll4;
  target.a4[group * p.page_tokens + token] = Fp16FromFloat(a4);
  if (target.stored_a8 != nullptr) {
    target.stored_a8[group * p.page_tokens + token] = Fp16FromFloat(16.0f * a8);
  }
  return absl::OkStatus();
}

absl::Status EncodeTensor(const uint16_t* raw, const float* mean, const EncodeTileParams& p,
                          const TensorTarget& target) {
  // Padding channels of V hold the codes of zero.
  for (int32_t c = p.head_dim; !target.is_k && c < AlignUp(p.head_dim, 32); ++c) {
    for (int32_t t = 0; t < p.page_tokens; ++t) {
      PutNibble(target.hi, target.is_k, p.head_dim, c, t, 8);
      if (target.lo != nullptr) PutNibble(target.lo, target.is_k, p.head_dim, c, t, 0);
    }
  }
  const ChannelGroups groups = GroupsOf(p.head_dim);
  for (int32_t t = 0; t < p.page_tokens; ++t) {
    float y[kHeadDimMax];
    for (int32_t c = 0; c < p.head_dim; ++c) y[c] = FloatFromBf16(raw[t * p.head_dim + c]);
    RotateForward(y, p.head_dim);
    for (int32_t c = 0; mean != nullptr && c < p.head_dim; ++c) y[c] -= mean[c];
    for (int32_t g = 0; g < groups.count; ++g) {
      PAGODA_RETURN_IF_ERROR(EncodeGroup(y, groups.begin[g], groups.begin[g + 1], g, t, p, target));
    }
  }
  return absl::OkStatus();
}

// Value of one element in the rotated frame, without the mean.
double DecodedElement(const uint16_t* a4, const uint16_t* stored_a8, const uint32_t* hi,
                      const uint32_t* lo, int64_t word, int32_t element, int64_t scale) {
  const int32_t shift = element % 4 * 8 + element / 4 * 4;
  const uint32_t high = hi[word] >> shift & 15;
  if (lo == nullptr) return double{FloatFromFp16(a4[scale])} * (high - 7.5);
  const uint32_t u = 16 * high + (lo[word] >> shift & 15);
  return double{FloatFromFp16(stored_a8[scale])} / 16 * (u - 127.5);
}

}  // namespace

absl::Status EncodeTileRef(const EncodeTileParams& params) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(PageShape{1, 1, params.head_dim, params.page_tokens}));
  PAGODA_RETURN_IF_ERROR(CheckEncodable(params));
  float mean[kHeadDimMax];
  PAGODA_RETURN_IF_ERROR(StoreMean(params, mean));
  uint16_t* k_a4 = params.k_hi_params + MeanWords(params.head_dim);
  PAGODA_RETURN_IF_ERROR(EncodeTensor(params.raw_k, mean, params,
                                      {k_a4, params.k_lo_params, params.k_hi, params.k_lo, true}));
  return EncodeTensor(params.raw_v, nullptr, params,
                      {params.v_hi_params, params.v_lo_params, params.v_hi, params.v_lo, false});
}

absl::Status ValidateTile(const PageTile& tile, int32_t page_tokens) {
  if (tile.token_count < 0 || tile.token_count > page_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tile: %d tokens, page holds %d", tile.token_count, page_tokens));
  }
  bool complete = false;
  if (tile.precision == Precision::kRaw16) {
    complete = tile.raw_k != nullptr && tile.raw_v != nullptr;
  } else if (tile.precision == Precision::kQ8 || tile.precision == Precision::kQ4) {
    const bool k_lo = tile.k_lo != nullptr && tile.k_lo_params != nullptr;
    const bool v_lo = tile.v_lo != nullptr && tile.v_lo_params != nullptr;
    complete = tile.k_hi != nullptr && tile.k_hi_params != nullptr && tile.v_hi != nullptr &&
               tile.v_hi_params != nullptr && (tile.precision == Precision::kQ4 || (k_lo && v_lo));
    const bool sinks = tile.sink_k != nullptr && tile.sink_v != nullptr;
    complete = complete && (tile.k_lo == nullptr) == (tile.k_lo_params == nullptr) &&
               (tile.v_lo == nullptr) == (tile.v_lo_params == nullptr);
    complete = complete && tile.sink_count >= 0 && tile.sink_count <= tile.token_count &&
               (tile.sink_count == 0 || sinks);
  }
  for (const uint16_t* rows : {tile.raw_k, tile.raw_v, tile.sink_k, tile.sink_v}) {
    complete = complete && reinterpret_cast<uintptr_t>(rows) % sizeof(uint32_t) == 0;
  }
  if (complete) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("tile: parts of precision %s are missing or misaligned",
                      std::string(PrecisionName(tile.precision))));
}

absl::Status DecodeTileRef(const PageTile& tile, const PageShape& shape, double* k, double* v) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  PAGODA_RETURN_IF_ERROR(ValidateTile(tile, shape.page_tokens));
  const int32_t head_dim = shape.head_dim;
  const ChannelGroups groups = GroupsOf(head_dim);
  for (int32_t t = 0; t < tile.token_count; ++t) {
    double* k_row = k + int64_t{t} * head_dim;
    double* v_row = v + int64_t{t} * head_dim;
    if (tile.precision == Precision::kRaw16 || t < tile.sink_count) {
      const bool raw = tile.precision == Precision::kRaw16;
      for (int32_t c = 0; c < head_dim; ++c) {
        k_row[c] = FloatFromBf16((raw ? tile.raw_k : tile.sink_k)[t * head_dim + c]);
        v_row[c] = FloatFromBf16((raw ? tile.raw_v : tile.sink_v)[t * head_dim + c]);
      }
      continue;
    }
    double k_rotated[kHeadDimMax];
    double v_rotated[kHeadDimMax];
    const int64_t block = t / kTileTokens;
    const int32_t in_block = t % kTileTokens;
    for (int32_t c = 0, g = 0; c < head_dim; ++c) {
      if (c == groups.begin[g + 1]) ++g;
      const int64_t scale = int64_t{g} * shape.page_tokens + t;
      const int64_t k_word = (block * (head_dim / kOctet) + c / kOctet) * kTileTokens + in_block;
      const int64_t v_word =
          ((block * (AlignUp(head_dim, 32) / 32) + c / 32) * 4 + in_block / kOctet) * 32 + c % 32;
      k_rotated[c] = DecodedElement(tile.k_hi_params + MeanWords(head_dim), tile.k_lo_params,
                                    tile.k_hi, tile.k_lo, k_word, c % kOctet, scale) +
                     FloatFromFp16(tile.k_hi_params[c]);
      v_rotated[c] = DecodedElement(tile.v_hi_params, tile.v_lo_params, tile.v_hi, tile.v_lo,
                                    v_word, in_block % kOctet, scale);
    }
    RotateBackwardRef(k_rotated, k_row, head_dim);
    RotateBackwardRef(v_rotated, v_row, head_dim);
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
