#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/codec.h"
#include "kernels/digest_words.h"
#include "kernels/page_score.h"
#include "kernels/simd_targets.h"
#include "storage/base/status_macros.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/page_score_cpu.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kOctet>;  // head_dim is a multiple of 8

HWY_INLINE hn::Vec<Floats> LoadBf16(Floats d, const uint16_t* words) {
  const hn::Rebind<uint16_t, Floats> half;
  const hn::Repartition<uint32_t, Floats> whole;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(whole, hn::LoadU(half, words))));
}

// Sum of the greater products, and of their magnitudes, of up to kHeads heads over one unit.
template <int kHeads>
HWY_INLINE void ScoreUnit(const float* q, const uint16_t* low, const uint16_t* high,
                          int32_t head_dim, float* sum_of, float* magnitude_of) {
  const Floats d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  hn::Vec<Floats> sum[kHeads];
  hn::Vec<Floats> magnitude[kHeads];
  for (int h = 0; h < kHeads; ++h) sum[h] = magnitude[h] = hn::Zero(d);
  for (int32_t c = 0; c < head_dim; c += lanes) {
    const auto a = LoadBf16(d, low + c);
    const auto b = LoadBf16(d, high + c);
    for (int h = 0; h < kHeads; ++h) {
      const auto x = hn::LoadU(d, q + int64_t{h} * head_dim + c);
      const auto product = hn::Max(hn::Mul(x, a), hn::Mul(x, b));
      sum[h] = hn::Add(sum[h], product);
      magnitude[h] = hn::Add(magnitude[h], hn::Abs(product));
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    sum_of[h] = hn::GetLane(hn::SumOfLanes(d, sum[h]));
    magnitude_of[h] = hn::GetLane(hn::SumOfLanes(d, magnitude[h]));
  }
}

// scores[h * stride] of one unit, for all heads.
void ScoreHeads(const PageScoreParams& p, const uint16_t* low, const uint16_t* high, float* scores,
                int64_t stride) {
  constexpr int32_t kHeads = 4;
  const float slack = p.digest == PlaneId::kQuestDigest ? SumSlack(p.head_dim) : 0.0f;
  float sum[kHeads];
  float magnitude[kHeads];
  for (int32_t h = 0; h < p.group_count; h += kHeads) {
    const float* q = p.q + int64_t{h} * p.head_dim;
    const int32_t count = std::min(kHeads, p.group_count - h);
    if (count == kHeads) {
      ScoreUnit<kHeads>(q, low, high, p.head_dim, sum, magnitude);
    } else {
      for (int32_t i = 0; i < count; ++i) {
        ScoreUnit<1>(q + int64_t{i} * p.head_dim, low, high, p.head_dim, sum + i, magnitude + i);
      }
    }
    for (int32_t i = 0; i < count; ++i) scores[(h + i) * stride] = sum[i] + slack * magnitude[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagoda::kernels {
namespace {

HWY_EXPORT(ScoreHeads);

float GreatestMagnitude(const float* x, int64_t count) {
  float greatest = 0;
  for (int64_t i = 0; i < count; ++i) greatest = std::max(greatest, std::fabs(x[i]));
  return greatest;
}

// What decoding may have moved a key by: nothing in a raw tile.
float SlackOf(const PageTile& tile, const float* k, int32_t count, int32_t head_dim) {
  if (tile.precision == Precision::kRaw16) return 0;
  float mean = 0;
  for (int32_t c = 0; c < head_dim; ++c) {
    mean = std::max(mean, std::fabs(FloatFromFp16(tile.k_hi_params[c])));
  }
  return kDigestSlack * (GreatestMagnitude(k, int64_t{count} * head_dim) + mean);
}

// `count` keys of one channel, head_dim apart.
void DigestChannel(PlaneId digest, const float* k, int32_t count, int32_t head_dim, float slack,
                   uint16_t* low, uint16_t* high) {
  float least = k[0];
  float greatest = k[0];
  float sum = 0;
  for (int32_t t = 0; t < count; ++t) {
    const float x = k[t * head_dim];
    least = std::min(least, x);
    greatest = std::max(greatest, x);
    sum += x;
  }
  if (digest == PlaneId::kMeanDigest) {
    *low = Bf16FromFloat(sum / static_cast<float>(count));
  } else if (digest == PlaneId::kQuestDigest) {
    *low = Bf16Below(least - slack);
    *high = Bf16Above(greatest + slack);
  } else {
    const float middle = 0.5f * least + 0.5f * greatest;
    float distance = 0;
    for (int32_t t = 0; t < count; ++t) distance += std::fabs(k[t * head_dim] - middle);
    distance /= static_cast<float>(count);
    *low = Bf16FromFloat(middle - distance);
    *high = Bf16FromFloat(middle + distance);
  }
}

}  // namespace

// Decoding is what takes time here, so that the rest is plain loops.
absl::Status BuildDigestCpu(PlaneId digest, const PageTile& tile, const PageShape& shape,
                            uint16_t* words) {
  PAGODA_RETURN_IF_ERROR(ValidateDigest(digest, tile, shape, words));
  const int32_t dim = shape.head_dim;
  std::vector<float> k(static_cast<size_t>(shape.page_tokens * dim));
  std::vector<float> v(k.size());
  PAGODA_RETURN_IF_ERROR(DecodeTileCpu(tile, shape, k.data(), v.data()));
  std::fill_n(words, TileBytesOf(digest, shape).first / 2, uint16_t{0});
  const int32_t rows = DigestRows(digest);
  for (int32_t begin = 0; begin < tile.token_count; begin += kDigestTokens) {
    const int32_t count = std::min(kDigestTokens, tile.token_count - begin);
    const float* keys = &k[static_cast<size_t>(begin * dim)];
    const float slack = SlackOf(tile, keys, count, dim);
    uint16_t* low = words + begin / kDigestTokens * rows * dim;
    uint16_t* high = low + (rows - 1) * dim;
    for (int32_t c = 0; c < dim; ++c) {
      DigestChannel(digest, keys + c, count, dim, slack, low + c, high + c);
    }
  }
  return absl::OkStatus();
}

absl::Status ScorePagesCpu(const PageScoreParams& p) {
  PAGODA_RETURN_IF_ERROR(ValidatePageScore(p));
  const int32_t units = p.page_tokens / kDigestTokens;
  const int32_t rows = DigestRows(p.digest);
  const auto stride = static_cast<int64_t>(p.tiles.size()) * units;  // of a head's scores
  const auto score_heads = HWY_DYNAMIC_DISPATCH(ScoreHeads);
  float* score = p.scores;
  for (const DigestTile& tile : p.tiles) {
    for (int32_t unit = 0; unit < units; ++unit, ++score) {
      const uint16_t* low = tile.words + unit * rows * p.head_dim;
      if (unit * kDigestTokens < tile.token_count) {
        score_heads(p, low, low + (rows - 1) * p.head_dim, score, stride);
        continue;
      }
      for (int32_t h = 0; h < p.group_count; ++h) {
        score[h * stride] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
#endif  // HWY_ONCE
