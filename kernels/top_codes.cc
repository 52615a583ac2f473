// Everything goes by rows of 32 words of hi form, in chunks of 8, which every vector length
// divides.
#include "kernels/top_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/float16.h"
#include "kernels/simd_targets.h"
#include "storage/base/bytes.h"
#include "storage/base/status_macros.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/top_codes.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

#ifndef PAGODA_KERNELS_TOP_CODES_ONCE
#define PAGODA_KERNELS_TOP_CODES_ONCE
namespace pagoda::kernels {

// Sums over the channels of a token's group; F and H as in top_codes.h. From them follow
// sum(F * F) and sum(F * H): F = 2 * H + S with S = 1 or -1.
struct LevelSums {
  int32_t hh[kPageTokensMax];
  int32_t hs[kPageTokensMax];
};

constexpr int32_t kRowWords = 32;
constexpr int32_t kPairWords = 16;  // of a row: bits 6..7
constexpr int32_t kOneWords = 8;    // of a row: bit 5

}  // namespace pagoda::kernels
#endif  // PAGODA_KERNELS_TOP_CODES_ONCE

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::CappedTag<uint32_t, kOneWords>;
using Ints = hn::RebindToSigned<Words>;
using V = hn::Vec<Words>;

HWY_INLINE V PairsOf(Words d, V hi) {
  return hn::And(hn::ShiftRight<2>(hi), hn::Set(d, 0x33333333u));
}
HWY_INLINE V OnesOf(Words d, V hi) {
  return hn::And(hn::ShiftRight<1>(hi), hn::Set(d, 0x11111111u));
}

// Three bits of each code of words [8 * kChunk + i, ...) of a row.
template <int kChunk>
HWY_INLINE V Top3Words(Words d, const uint32_t* pairs, const uint32_t* ones, int32_t i) {
  const V pair = hn::And(hn::ShiftRight<2 * (kChunk / 2)>(hn::Load(d, pairs + kChunk % 2 * 8 + i)),
                         hn::Set(d, 0x33333333u));
  const V one = hn::And(hn::ShiftRight<kChunk>(hn::Load(d, ones + i)), hn::Set(d, 0x11111111u));
  return hn::Or(hn::ShiftLeft<1>(pair), one);
}

void CutRows(const uint32_t* hi, int64_t row_count, uint32_t* top3) {
  const Words d;
  uint32_t* ones = top3 + row_count * kPairWords;
  for (int64_t row = 0; row < row_count; ++row) {
    for (size_t i = 0; i < kOneWords; i += hn::Lanes(d)) {
      const V a = hn::Load(d, hi + i);
      const V b = hn::Load(d, hi + 8 + i);
      const V c = hn::Load(d, hi + 16 + i);
      const V e = hn::Load(d, hi + 24 + i);
      hn::Store(hn::Or(PairsOf(d, a), hn::ShiftLeft<2>(PairsOf(d, c))), d, top3 + i);
      hn::Store(hn::Or(PairsOf(d, b), hn::ShiftLeft<2>(PairsOf(d, e))), d, top3 + 8 + i);
      const V low = hn::Or(OnesOf(d, a), hn::ShiftLeft<1>(OnesOf(d, b)));
      const V high = hn::Or(hn::ShiftLeft<2>(OnesOf(d, c)), hn::ShiftLeft<3>(OnesOf(d, e)));
      hn::Store(hn::Or(low, high), d, ones + i);
    }
    hi += kRowWords;
    top3 += kPairWords;
    ones += kOneWords;
  }
}

// `add` to every code: 4 in each nibble; 0 for the codes themselves.
void WidenRows3(const uint32_t* top3, int64_t row_count, uint32_t add, uint32_t* hi) {
  const Words d;
  const V plus = hn::Set(d, add);
  const uint32_t* ones = top3 + row_count * kPairWords;
  for (int64_t row = 0; row < row_count; ++row) {
    for (int32_t i = 0; i < kOneWords; i += static_cast<int32_t>(hn::Lanes(d))) {
      hn::Store(hn::Add(Top3Words<0>(d, top3, ones, i), plus), d, hi + i);
      hn::Store(hn::Add(Top3Words<1>(d, top3, ones, i), plus), d, hi + 8 + i);
      hn::Store(hn::Add(Top3Words<2>(d, top3, ones, i), plus), d, hi + 16 + i);
      hn::Store(hn::Add(Top3Words<3>(d, top3, ones, i), plus), d, hi + 24 + i);
    }
    hi += kRowWords;
    top3 += kPairWords;
    ones += kOneWords;
  }
}

void WidenRows2(const uint32_t* top2, int64_t row_count, uint32_t* hi) {
  const Words d;
  const V plus = hn::Set(d, 0x66666666u);
  const V mask = hn::Set(d, 0x33333333u);
  for (int64_t row = 0; row < row_count; ++row) {
    for (size_t i = 0; i < kPairWords; i += hn::Lanes(d)) {
      const V pairs = hn::Load(d, top2 + i);
      hn::Store(hn::Add(hn::And(pairs, mask), plus), d, hi + i);
      hn::Store(hn::Add(hn::And(hn::ShiftRight<2>(pairs), mask), plus), d, hi + kPairWords + i);
    }
    hi += kRowWords;
    top2 += kPairWords;
  }
}

// H * H and H * S of the lowest nibble of every lane.
HWY_INLINE void AddLevels(Ints d, hn::Vec<Ints> code, hn::Vec<Ints> half_top, hn::Vec<Ints>& hh,
                          hn::Vec<Ints>& hs) {
  const auto one = hn::Set(d, 1);
  const auto h =
      hn::Sub(hn::Add(hn::AndNot(one, code), one), half_top);  // 2 * (u / 2) + 1 - 2^(b-1)
  const auto s = hn::Sub(hn::Add(hn::And(code, one), hn::And(code, one)), one);
  hh = hn::Add(hh, hn::Mul(h, h));
  hs = hn::Add(hs, hn::Mul(h, s));
}

// `codes` in hi's layout, each nibble of `bits` bits. Words of K are tokens and their nibbles
// channels; of V the other way round.
void SumK(const uint32_t* codes, const CodesShape& shape, int bits, int32_t begin, int32_t end,
          LevelSums& sums) {
  const Ints d;
  const auto nibble = hn::Set(d, 15);
  const auto half_top = hn::Set(d, 1 << (bits - 1));
  const int32_t octets = shape.head_dim / kOctet;
  for (int32_t t = 0; t < shape.page_tokens; t += static_cast<int32_t>(hn::Lanes(d))) {
    const uint32_t* block = codes + int64_t{t / kTileTokens} * octets * kRowWords + t % kTileTokens;
    auto hh = hn::Zero(d);
    auto hs = hn::Zero(d);
    for (int32_t octet = begin / kOctet; octet < end / kOctet; ++octet) {
      auto word = hn::BitCast(d, hn::Load(Words(), block + octet * kRowWords));
      for (int n = 0; n < kOctet; ++n) {
        AddLevels(d, hn::And(word, nibble), half_top, hh, hs);
        word = hn::ShiftRight<4>(word);
      }
    }
    hn::StoreU(hh, d, sums.hh + t);
    hn::StoreU(hs, d, sums.hs + t);
  }
}

void SumV(const uint32_t* codes, const CodesShape& shape, int bits, int32_t begin, int32_t end,
          LevelSums& sums) {
  const Ints d;
  const auto nibble = hn::Set(d, 15);
  const auto half_top = hn::Set(d, 1 << (bits - 1));
  const int32_t v_rows = static_cast<int32_t>(AlignUp(shape.head_dim, kRowWords)) / kRowWords;
  for (int32_t t = 0; t < shape.page_tokens; t += kOctet) {
    const uint32_t* rows =
        codes + (int64_t{t / kTileTokens} * v_rows * 4 + t % kTileTokens / kOctet) * kRowWords;
    hn::Vec<Ints> hh[kOctet];
    hn::Vec<Ints> hs[kOctet];
    for (int n = 0; n < kOctet; ++n) hh[n] = hs[n] = hn::Zero(d);
    for (int32_t c = begin; c < end; c += static_cast<int32_t>(hn::Lanes(d))) {
      auto word =
          hn::BitCast(d, hn::Load(Words(), rows + c / kRowWords * 4 * kRowWords + c % kRowWords));
      for (int n = 0; n < kOctet; ++n) {
        AddLevels(d, hn::And(word, nibble), half_top, hh[n], hs[n]);
        word = hn::ShiftRight<4>(word);
      }
    }
    // Nibble n of a word is element n / 2, or 4 + n / 2 where n is odd.
    for (int n = 0; n < kOctet; ++n) {
      const int32_t token = t + n / 2 + n % 2 * 4;
      sums.hh[token] = hn::GetLane(hn::SumOfLanes(d, hh[n]));
      sums.hs[token] = hn::GetLane(hn::SumOfLanes(d, hs[n]));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagoda::kernels {

HWY_EXPORT(CutRows);
HWY_EXPORT(WidenRows3);
HWY_EXPORT(WidenRows2);
HWY_EXPORT(SumK);
HWY_EXPORT(SumV);

namespace {

constexpr int64_t kTileWordsMax = int64_t{kPageTokensMax} * kHeadDimMax / kOctet;

int64_t RowCount(const CodesShape& shape) {
  const int64_t channels = shape.is_k ? shape.head_dim : AlignUp(shape.head_dim, kRowWords);
  return shape.page_tokens * channels / kOctet / kRowWords;
}

int64_t MeanWordsOf(const CodesShape& shape) { return shape.is_k ? MeanWords(shape.head_dim) : 0; }

int64_t ParamWords(const CodesShape& shape) {
  return MeanWordsOf(shape) + int64_t{GroupsOf(shape.head_dim).count} * shape.page_tokens;
}

void CopyParams(const CodesShape& shape, const uint16_t* from, uint16_t* to) {
  std::memcpy(to, from, static_cast<size_t>(ParamWords(shape)) * sizeof(uint16_t));
}

// The params of the form with one bit less than `codes`, which has `bits`.
absl::Status CutParams(const CodesShape& shape, const uint16_t* from, const uint32_t* codes,
                       int bits, uint16_t* to) {
  const auto mean_words = static_cast<size_t>(MeanWordsOf(shape));
  std::memcpy(to, from, mean_words * sizeof(uint16_t));
  from += mean_words;
  to += mean_words;
  const ChannelGroups groups = GroupsOf(shape.head_dim);
  const auto sum = shape.is_k ? HWY_DYNAMIC_DISPATCH(SumK) : HWY_DYNAMIC_DISPATCH(SumV);
  LevelSums sums;
  for (int32_t g = 0; g < groups.count; ++g) {
    const int32_t begin = groups.begin[g];
    const int32_t end = groups.begin[g + 1];
    sum(codes, shape, bits, begin, end, sums);
    for (int32_t t = 0; t < shape.page_tokens; ++t) {
      const int32_t hh = sums.hh[t];
      const int32_t fh = 2 * hh + sums.hs[t];
      const int32_t ff = 4 * hh + 4 * sums.hs[t] + (end - begin);
      const float ratio_top = static_cast<float>(shape.is_k ? ff : fh);
      const float ratio_bottom = static_cast<float>(shape.is_k ? fh : hh);
      const float a = FloatFromFp16(from[g * shape.page_tokens + t]) * ratio_top / ratio_bottom;
      const uint16_t stored = Fp16FromFloat(a);
      if (!std::isfinite(FloatFromFp16(stored))) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "cut: the scale %g of token %d at %d bits does not fit fp16", a, t, bits - 1));
      }
      to[g * shape.page_tokens + t] = stored;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CutHiToTop3(const CodesShape& shape, const TileCodes& hi,
                         const MutableTileCodes& top3) {
  PAGODA_RETURN_IF_ERROR(CutParams(shape, hi.params, hi.codes, 4, top3.params));
  const int64_t row_count = RowCount(shape);
  HWY_DYNAMIC_DISPATCH(CutRows)(hi.codes, row_count, top3.codes);
  // An odd number of rows leaves half a line.
  const int64_t words = row_count * (kPairWords + kOneWords);
  std::fill(top3.codes + words, top3.codes + AlignUp(words, kPairWords), 0u);
  return absl::OkStatus();
}

absl::Status CutTop3ToTop2(const CodesShape& shape, const TileCodes& top3,
                           const MutableTileCodes& top2) {
  alignas(64) uint32_t codes[kTileWordsMax];
  const int64_t row_count = RowCount(shape);
  HWY_DYNAMIC_DISPATCH(WidenRows3)(top3.codes, row_count, /*add=*/0, codes);
  PAGODA_RETURN_IF_ERROR(CutParams(shape, top3.params, codes, 3, top2.params));
  std::memcpy(top2.codes, top3.codes,
              static_cast<size_t>(row_count * kPairWords) * sizeof(uint32_t));
  return absl::OkStatus();
}

void WidenTop3(const CodesShape& shape, const TileCodes& top3, const MutableTileCodes& hi) {
  CopyParams(shape, top3.params, hi.params);
  HWY_DYNAMIC_DISPATCH(WidenRows3)(top3.codes, RowCount(shape), 0x44444444u, hi.codes);
}

void WidenTop2(const CodesShape& shape, const TileCodes& top2, const MutableTileCodes& hi) {
  CopyParams(shape, top2.params, hi.params);
  HWY_DYNAMIC_DISPATCH(WidenRows2)(top2.codes, RowCount(shape), hi.codes);
}

}  // namespace pagoda::kernels
#endif  // HWY_ONCE
