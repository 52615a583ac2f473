// SIMD encoder and decoder of tiles. Lanes are tokens: 32 tokens of a tile stand transposed in a
// buffer [channel][32], so that butterflies, maxima and sums along channels are vertical, and the
// order of every sum is that of the specification whatever the vector length.
#include <algorithm>
#include <cstring>

#include "kernels/simd_targets.h"
//
#include "absl/strings/str_format.h"
#include "kernels/codec.h"
#include "kernels/codec_input.h"
#include "kernels/float16.h"
#include "kernels/hadamard.h"
#include "storage/base/status_macros.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec_cpu.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

#ifndef PAGODA_KERNELS_CODEC_CPU_ONCE
#define PAGODA_KERNELS_CODEC_CPU_ONCE
namespace pagoda::kernels {

// 32 tokens of one tensor of a tile.
struct EncodeBlock {
  const uint16_t* raw;  // first row
  const float* mean;    // null for V
  int32_t head_dim;
  uint32_t* k_hi;  // K: words of this block; null for V
  uint32_t* k_lo;
  uint8_t* codes;  // V: [head_dim][32] codes, written; null for K
  float* a4;       // [group][32]
  float* a8;       // [group][32], 16 * a8
};

struct DecodeBlock {
  const uint16_t* scales;  // of the first token; groups are scale_stride apart
  int64_t scale_stride;
  const uint16_t* mean;  // fp16, null for V
  const uint8_t* codes;  // [head_dim][32]: 0..255 with hi + lo, 0..15 with hi alone
  float centre;          // level = code - centre
  float scale_factor;    // 1, or 1 / 16 for 16 * a8
  int32_t head_dim;
};

}  // namespace pagoda::kernels
#endif  // PAGODA_KERNELS_CODEC_CPU_ONCE

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::Rebind<int32_t, DF>;
using DU = hn::Rebind<uint32_t, DF>;
using D8 = hn::Rebind<uint8_t, DF>;
using VF = hn::Vec<DF>;
constexpr int32_t kLanes = static_cast<int32_t>(HWY_MIN(HWY_LANES(float), 16));

// Three stages at once, of rows `stride` apart: the arithmetic is that of three single stages.
HWY_INLINE void EightRows(float* row, int64_t stride) {
  const DF d;
  VF x[8];
  for (int i = 0; i < 8; ++i) x[i] = hn::Load(d, row + i * stride * kTileTokens);
  for (int step = 1; step < 8; step *= 2) {
    for (int i = 0; i < 8; ++i) {
      if ((i & step) != 0) continue;
      const VF a = x[i];
      const VF b = x[i + step];
      x[i] = hn::Add(a, b);
      x[i + step] = hn::Sub(a, b);
    }
  }
  for (int i = 0; i < 8; ++i) hn::Store(x[i], d, row + i * stride * kTileTokens);
}

// Butterflies of one block of `size` channels, y [size][32].
void Butterflies(float* y, int32_t size) {
  const DF d;
  for (int32_t t = 0; t < kTileTokens; t += kLanes) {
    int32_t stride = 1;
    for (; stride * 8 <= size; stride *= 8) {
      for (int32_t i = 0; i < size; i += 8 * stride) {
        for (int32_t j = i; j < i + stride; ++j) EightRows(y + j * kTileTokens + t, stride);
      }
    }
    for (; stride < size; stride *= 2) {
      for (int32_t i = 0; i < size; i += 2 * stride) {
        for (int32_t j = i; j < i + stride; ++j) {
          float* low = y + j * kTileTokens + t;
          float* high = low + stride * kTileTokens;
          const VF a = hn::Load(d, low);
          const VF b = hn::Load(d, high);
          hn::Store(hn::Add(a, b), d, low);
          hn::Store(hn::Sub(a, b), d, high);
        }
      }
    }
  }
}

// All blocks of head_dim. Scaling is left to the caller, who multiplies by ScaleOf(channel) next.
void TransformAll(float* y, int32_t head_dim) {
  int32_t begin = 0;
  for (int32_t size = kHeadDimMax; size >= kOctet; size /= 2) {
    if ((head_dim & size) == 0) continue;
    Butterflies(y + begin * kTileTokens, size);
    begin += size;
  }
}

// Rows of 32 tokens, transposed, with the signs of the rotation: y [head_dim][32].
void LoadTransposed(const uint16_t* raw, int32_t head_dim, float* y) {
  const DF d;
  const DI di;
  const DU du;
  const auto upper = hn::Set(du, 0xffff0000u);
  const auto offsets = hn::Mul(hn::Iota(di, 0), hn::Set(di, head_dim / 2));
  for (int32_t t = 0; t < kTileTokens; t += kLanes) {
    const auto* rows = reinterpret_cast<const int32_t*>(raw + int64_t{t} * head_dim);
    for (int32_t c = 0; c < head_dim; c += 2) {
      // One word holds channels c and c + 1 of a token.
      const auto words = hn::BitCast(du, hn::GatherIndex(di, rows + c / 2, offsets));
      const VF even = hn::BitCast(d, hn::ShiftLeft<16>(words));
      const VF odd = hn::BitCast(d, hn::And(words, upper));
      hn::Store(IsFlippedChannel(c) ? hn::Neg(even) : even, d, y + c * kTileTokens + t);
      hn::Store(IsFlippedChannel(c + 1) ? hn::Neg(odd) : odd, d, y + (c + 1) * kTileTokens + t);
    }
  }
}

// Scale of the transform, then the mean, in place. Returns the greatest |y|.
float ScaleAndCentre(float* y, const float* mean, int32_t head_dim) {
  const DF d;
  VF largest = hn::Zero(d);
  int32_t begin = 0;
  for (int32_t size = kHeadDimMax; size >= kOctet; size /= 2) {
    if ((head_dim & size) == 0) continue;
    const VF scale = hn::Set(d, HadamardScale(size));
    for (int32_t c = begin; c < begin + size; ++c) {
      for (int32_t t = 0; t < kTileTokens; t += kLanes) {
        VF x = hn::Mul(hn::Load(d, y + c * kTileTokens + t), scale);
        if (mean != nullptr) x = hn::Sub(x, hn::Set(d, mean[c]));
        largest = hn::Max(largest, hn::Abs(x));
        hn::Store(x, d, y + c * kTileTokens + t);
      }
    }
    begin += size;
  }
  float lanes[kLanes];
  hn::StoreU(largest, d, lanes);
  return *std::max_element(lanes, lanes + kLanes);
}

// Codes and scales of kLanes tokens (from t) and the channels of one group.
HWY_INLINE void CodeGroup(const float* y, int32_t begin, int32_t end, int32_t t, int32_t group,
                          const EncodeBlock& block) {
  const DF d;
  const DI di;
  const DU du;
  VF m = hn::Set(d, 1e-12f);
  for (int32_t c = begin; c < end; ++c) {
    m = hn::Max(m, hn::Abs(hn::Load(d, y + c * kTileTokens + t)));
  }
  const VF inv = hn::Div(hn::Set(d, 127.5f), m);
  const VF half = hn::Set(d, 0.5f);
  VF yy = hn::Zero(d), yl8 = yy, ll8 = yy, yl4 = yy, ll4 = yy;
  for (int32_t c0 = begin; c0 < end; c0 += kOctet) {
    auto word_hi = hn::Zero(du);
    auto word_lo = hn::Zero(du);
    for (int32_t i = 0; i < kOctet; ++i) {
      const VF x = hn::Load(d, y + (c0 + i) * kTileTokens + t);
      const VF code =
          hn::Min(hn::Max(hn::Floor(hn::Mul(x, inv)), hn::Set(d, -128.0f)), hn::Set(d, 127.0f));
      const VF level8 = hn::Add(code, half);
      const VF level4 = hn::Add(hn::Floor(hn::Mul(code, hn::Set(d, 0.0625f))), half);
      yy = hn::Add(yy, hn::Mul(x, x));
      yl8 = hn::Add(yl8, hn::Mul(x, level8));
      ll8 = hn::Add(ll8, hn::Mul(level8, level8));
      yl4 = hn::Add(yl4, hn::Mul(x, level4));
      ll4 = hn::Add(ll4, hn::Mul(level4, level4));
      const auto u = hn::Add(hn::ConvertTo(di, code), hn::Set(di, 128));
      if (block.codes != nullptr) {
        hn::StoreU(hn::DemoteTo(D8(), u), D8(), block.codes + (c0 + i) * kTileTokens + t);
      } else {
        const int shift = i % 4 * 8 + i / 4 * 4;
        const auto bits = hn::BitCast(du, u);
        word_hi = hn::Or(word_hi, hn::ShiftLeftSame(hn::ShiftRight<4>(bits), shift));
        word_lo = hn::Or(word_lo, hn::ShiftLeftSame(hn::And(bits, hn::Set(du, 15)), shift));
      }
    }
    if (block.codes == nullptr) {
      const int64_t at = int64_t{c0 / kOctet} * kTileTokens + t;
      hn::Store(word_hi, du, block.k_hi + at);
      if (block.k_lo != nullptr) hn::Store(word_lo, du, block.k_lo + at);
    }
  }
  VF a8, a4;
  if (block.codes == nullptr) {  // K: unbiased
    a8 = hn::Div(yy, hn::Max(yl8, hn::Set(d, 1e-20f)));
    a4 = hn::Div(yy, hn::Max(yl4, hn::Set(d, 1e-20f)));
  } else {  // V: least squares
    a8 = hn::Div(yl8, ll8);
    a4 = hn::Div(yl4, ll4);
  }
  hn::StoreU(hn::Mul(a8, hn::Set(d, 16.0f)), d, block.a8 + group * kTileTokens + t);
  hn::StoreU(a4, d, block.a4 + group * kTileTokens + t);
}

// Returns the greatest rotated magnitude; codes are valid only if it is within the codec's range.
float EncodeBlockSimd(const EncodeBlock& block) {
  HWY_ALIGN float y[kHeadDimMax * kTileTokens];
  LoadTransposed(block.raw, block.head_dim, y);
  TransformAll(y, block.head_dim);
  const float largest = ScaleAndCentre(y, block.mean, block.head_dim);
  const ChannelGroups groups = GroupsOf(block.head_dim);
  for (int32_t g = 0; g < groups.count; ++g) {
    for (int32_t t = 0; t < kTileTokens; t += kLanes) {
      CodeGroup(y, groups.begin[g], groups.begin[g + 1], t, g, block);
    }
  }
  return largest;
}

// Values of 32 tokens in the un-rotated frame, y [head_dim][32].
void DecodeBlockSimd(const DecodeBlock& block, float* y) {
  const DF d;
  const DI di;
  const ChannelGroups groups = GroupsOf(block.head_dim);
  for (int32_t g = 0; g < groups.count; ++g) {
    for (int32_t t = 0; t < kTileTokens; t += kLanes) {
      HWY_ALIGN float scales[kLanes];
      for (int32_t i = 0; i < kLanes; ++i) {
        scales[i] =
            FloatFromFp16(block.scales[g * block.scale_stride + t + i]) * block.scale_factor;
      }
      const VF a = hn::Load(d, scales);
      for (int32_t c = groups.begin[g]; c < groups.begin[g + 1]; ++c) {
        const auto u = hn::PromoteTo(di, hn::LoadU(D8(), block.codes + c * kTileTokens + t));
        VF x = hn::Mul(hn::Sub(hn::ConvertTo(d, u), hn::Set(d, block.centre)), a);
        if (block.mean != nullptr) x = hn::Add(x, hn::Set(d, FloatFromFp16(block.mean[c])));
        hn::Store(x, d, y + c * kTileTokens + t);
      }
    }
  }
  TransformAll(y, block.head_dim);
  int32_t begin = 0;
  for (int32_t size = kHeadDimMax; size >= kOctet; size /= 2) {
    if ((block.head_dim & size) == 0) continue;
    for (int32_t c = begin; c < begin + size; ++c) {
      const float scale = HadamardScale(size);
      const VF signed_scale = hn::Set(d, IsFlippedChannel(c) ? -scale : scale);
      for (int32_t t = 0; t < kTileTokens; t += kLanes) {
        float* at = y + c * kTileTokens + t;
        hn::Store(hn::Mul(hn::Load(d, at), signed_scale), d, at);
      }
    }
    begin += size;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagoda::kernels {
namespace {

HWY_EXPORT(EncodeBlockSimd);
HWY_EXPORT(DecodeBlockSimd);

constexpr uint64_t kLowNibbles = 0x0f0f0f0f0f0f0f0f;

// Eight nibbles, one a byte, as the word that holds them.
uint32_t PackNibbles(uint64_t nibbles) {
  return static_cast<uint32_t>(nibbles) | static_cast<uint32_t>(nibbles >> 32) << 4;
}
uint64_t UnpackNibbles(uint32_t word) {
  return (uint64_t{word} | uint64_t{word >> 4} << 32) & kLowNibbles;
}

// Words of one 32-token block of V from its codes [channel][32].
void PackValues(const uint8_t* codes, int32_t head_dim, uint32_t* hi, uint32_t* lo) {
  const int64_t v_dim = AlignUp(head_dim, kTileTokens);
  for (int64_t c = 0; c < v_dim; ++c) {
    for (int64_t octet = 0; octet < 4; ++octet) {
      uint64_t u = 0x8080808080808080;  // padding: the code of zero
      if (c < head_dim) std::memcpy(&u, codes + c * kTileTokens + octet * kOctet, sizeof(u));
      const int64_t word = (c / 32 * 4 + octet) * 32 + c % 32;
      hi[word] = PackNibbles(u >> 4 & kLowNibbles);
      if (lo != nullptr) lo[word] = PackNibbles(u & kLowNibbles);
    }
  }
}

// Codes [channel][32] from the words of one 32-token block.
void UnpackKeys(const uint32_t* hi, const uint32_t* lo, int32_t head_dim, uint8_t* codes) {
  for (int32_t octet = 0; octet < head_dim / kOctet; ++octet) {
    for (int32_t t = 0; t < kTileTokens; ++t) {
      const int32_t word = octet * kTileTokens + t;
      const uint64_t high = UnpackNibbles(hi[word]);
      const uint64_t u = lo == nullptr ? high : high << 4 | UnpackNibbles(lo[word]);
      for (int32_t i = 0; i < kOctet; ++i) {
        codes[(octet * kOctet + i) * kTileTokens + t] = static_cast<uint8_t>(u >> (8 * i));
      }
    }
  }
}

void UnpackValues(const uint32_t* hi, const uint32_t* lo, int32_t head_dim, uint8_t* codes) {
  for (int32_t c = 0; c < head_dim; ++c) {
    for (int32_t octet = 0; octet < 4; ++octet) {
      const int32_t word = (c / 32 * 4 + octet) * 32 + c % 32;
      const uint64_t high = UnpackNibbles(hi[word]);
      const uint64_t u = lo == nullptr ? high : high << 4 | UnpackNibbles(lo[word]);
      std::memcpy(codes + c * kTileTokens + octet * kOctet, &u, sizeof(u));
    }
  }
}

struct TensorTarget {
  uint16_t* a4;
  uint16_t* stored_a8;
  uint32_t* hi;
  uint32_t* lo;
  bool is_k;
};

absl::Status EncodeTensor(const uint16_t* raw, const float* mean, const EncodeTileParams& p,
                          const TensorTarget& target) {
  const int32_t group_count = GroupsOf(p.head_dim).count;
  const int64_t code_words =
      (target.is_k ? p.head_dim : AlignUp(p.head_dim, kTileTokens)) * kTileTokens / kOctet;
  uint8_t codes[kHeadDimMax * kTileTokens];
  float a4[ChannelGroups::kCountMax * kTileTokens];
  float a8[ChannelGroups::kCountMax * kTileTokens];
  for (int32_t t = 0; t < p.page_tokens; t += kTileTokens) {
    const int64_t words = t / kTileTokens * code_words;
    EncodeBlock block{};
    block.raw = raw + int64_t{t} * p.head_dim;
    block.mean = mean;
    block.head_dim = p.head_dim;
    block.k_hi = target.is_k ? target.hi + words : nullptr;
    block.k_lo = target.is_k && target.lo != nullptr ? target.lo + words : nullptr;
    block.codes = target.is_k ? nullptr : codes;
    block.a4 = a4;
    block.a8 = a8;
    const float largest = HWY_DYNAMIC_DISPATCH(EncodeBlockSimd)(block);
    if (largest > kEncodeMagnitudeMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "encode: rotated magnitude %g, the codec holds %g", largest, kEncodeMagnitudeMax));
    }
    if (!target.is_k) {
      PackValues(codes, p.head_dim, target.hi + words,
                 target.lo == nullptr ? nullptr : target.lo + words);
    }
    for (int32_t i = 0; i < group_count * kTileTokens; ++i) {
      const int64_t at = int64_t{i / kTileTokens} * p.page_tokens + t + i % kTileTokens;
      target.a4[at] = Fp16FromFloat(a4[i]);
      if (target.stored_a8 != nullptr) target.stored_a8[at] = Fp16FromFloat(a8[i]);
    }
  }
  return absl::OkStatus();
}

// y [head_dim][32] to `count` rows.
void StoreRows(const float* y, int32_t head_dim, int32_t count, float* rows) {
  for (int32_t t = 0; t < count; ++t) {
    for (int32_t c = 0; c < head_dim; ++c) rows[t * head_dim + c] = y[c * kTileTokens + t];
  }
}

void DecodeCodes(const PageTile& tile, const PageShape& shape, bool is_k, float* rows) {
  const int32_t head_dim = shape.head_dim;
  const uint32_t* hi = is_k ? tile.k_hi : tile.v_hi;
  const uint32_t* lo = is_k ? tile.k_lo : tile.v_lo;
  const uint16_t* a4 = is_k ? tile.k_hi_params + MeanWords(head_dim) : tile.v_hi_params;
  const uint16_t* stored_a8 = is_k ? tile.k_lo_params : tile.v_lo_params;
  const int64_t code_words =
      (is_k ? head_dim : AlignUp(head_dim, kTileTokens)) * kTileTokens / kOctet;
  uint8_t codes[kHeadDimMax * kTileTokens];
  HWY_ALIGN_MAX float y[kHeadDimMax * kTileTokens];
  for (int32_t t = 0; t < tile.token_count; t += kTileTokens) {
    const int64_t words = t / kTileTokens * code_words;
    const auto unpack = is_k ? UnpackKeys : UnpackValues;
    unpack(hi + words, lo == nullptr ? nullptr : lo + words, head_dim, codes);
    DecodeBlock block{};
    block.scales = (lo == nullptr ? a4 : stored_a8) + t;
    block.scale_stride = shape.page_tokens;
    block.mean = is_k ? tile.k_hi_params : nullptr;
    block.codes = codes;
    block.centre = lo == nullptr ? 7.5f : 127.5f;
    block.scale_factor = lo == nullptr ? 1.0f : 0.0625f;
    block.head_dim = head_dim;
    HWY_DYNAMIC_DISPATCH(DecodeBlockSimd)(block, y);
    StoreRows(y, head_dim, std::min(kTileTokens, tile.token_count - t),
              rows + int64_t{t} * head_dim);
  }
}

void DecodeRaw(const uint16_t* raw, int64_t count, float* rows) {
  for (int64_t i = 0; i < count; ++i) rows[i] = FloatFromBf16(raw[i]);
}

}  // namespace

absl::Status EncodeTileCpu(const EncodeTileParams& params) {
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

absl::Status DecodeTileCpu(const PageTile& tile, const PageShape& shape, float* k, float* v) {
  PAGODA_RETURN_IF_ERROR(ValidatePageShape(shape));
  PAGODA_RETURN_IF_ERROR(ValidateTile(tile, shape.page_tokens));
  if (tile.precision == Precision::kRaw16) {
    DecodeRaw(tile.raw_k, int64_t{tile.token_count} * shape.head_dim, k);
    DecodeRaw(tile.raw_v, int64_t{tile.token_count} * shape.head_dim, v);
    return absl::OkStatus();
  }
  DecodeCodes(tile, shape, /*is_k=*/true, k);
  DecodeCodes(tile, shape, /*is_k=*/false, v);
  DecodeRaw(tile.sink_k, int64_t{tile.sink_count} * shape.head_dim, k);
  DecodeRaw(tile.sink_v, int64_t{tile.sink_count} * shape.head_dim, v);
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
#endif  // HWY_ONCE
