// Decode: one query position, all heads of its group. Every tile is read once, in place: codes and
// bf16 rows become floats in registers, shared by up to four heads. Lanes are tokens for K codes
// and channels for V codes, so that neither needs a horizontal sum (page_layout.h).
//
//   logit_t = q~.mu + sum_g a_tg (q~_g . u_t - centre * sum q~_g)     o~ = sum_t p_t a_tg (u_t -
//   centre)
//
// with u the stored code, centre 7.5 (hi) or 127.5 (hi + lo), q~ and o~ in the rotated frame; raw16
// rows use the plain q and an o of their own, with channels in (even, odd) order. Heads that do not
// fit the registers take a second pass over the tile, which is then in cache. While one tile is
// computed, the next is prefetched at the same offsets.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention_kernels.h"
#include "kernels/hadamard.h"
#include "kernels/simd_targets.h"
#include "kernels/token_run.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_decode_cpu.cc"
#include "hwy/foreach_target.h"
//
#include "kernels/attention_simd-inl.h"

#ifndef PAGODA_KERNELS_ATTENTION_DECODE_ONCE
#define PAGODA_KERNELS_ATTENTION_DECODE_ONCE
namespace pagoda::kernels {

constexpr int32_t kHeadsMax = 4;  // of one pass

// State of one head, in scratch.
struct HeadState {
  alignas(64) float q_even[kHeadDimMax / 2];  // scaled query, channels 0, 2, ...
  alignas(64) float q_odd[kHeadDimMax / 2];
  alignas(64) float q_rotated[kHeadDimMax];
  alignas(64) float o_even[kHeadDimMax / 2];
  alignas(64) float o_odd[kHeadDimMax / 2];
  alignas(64) float o_rotated[kHeadDimMax];
  alignas(64) float p[kPageTokensMax];                                   // logits, then weights
  alignas(64) float p_scaled[ChannelGroups::kCountMax][kPageTokensMax];  // p * scale of V
  float q_sum[ChannelGroups::kCountMax];                                 // of q_rotated
  float bias[ChannelGroups::kCountMax];                                  // centre * sum p_scaled
  float max;
  float sum;
};

// What a run reads of one tensor, and where the same offsets of the next tile are.
struct CodesOf {
  const uint32_t* hi;
  const uint32_t* lo;  // null: hi alone
  const uint16_t* scales;
  const uint32_t* next_hi;
  const uint32_t* next_lo;
};

struct RunArgs {
  int32_t head_dim;
  int32_t page_tokens;
  int32_t begin;
  int32_t end;
  ChannelGroups groups;
};

}  // namespace pagoda::kernels
#endif  // PAGODA_KERNELS_ATTENTION_DECODE_ONCE

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE void PrefetchLine(const void* address) { __builtin_prefetch(address, 0, 2); }

// ---- Codes
// ---------------------------------------------------------------------------------------

// Adds octet `words` (lanes are tokens) times q[0..7] of each head.
template <int kHeads, int kVectors, bool kBoth>
HWY_INLINE void DotOctet(const VU (&hi)[kVectors], const VU (&lo)[kVectors],
                         const float* const (&q)[kHeads], int32_t channel,
                         VF (&acc)[kHeads][kVectors]) {
  MergedWords merged[kVectors];
  if constexpr (kBoth) {
    PAGODA_UNROLL
    for (int v = 0; v < kVectors; ++v) merged[v] = MergeWords(hi[v], lo[v]);
  }
  PAGODA_UNROLL
  for (int i = 0; i < kOctet; ++i) {
    VF u[kVectors];
    PAGODA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kBoth) {
        u[v] = ByteOf(merged[v], i);
      } else {
        u[v] = NibbleOf(hi[v], i);
      }
    }
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const VF query = hn::Set(DF(), q[h][channel + i]);
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(query, u[v], acc[h][v]);
    }
  }
}

// Logits of all tokens of the tile, codes [begin, end) or not: the softmax masks.
template <int kHeads, bool kBoth>
void KeyCodes(HeadState* heads, const float (&mean_dot)[kHeads], const CodesOf& k,
              const RunArgs& run) {
  constexpr int kVectors = 2 * kLanes <= kTileTokens ? 2 : 1;
  constexpr float kCentre = kBoth ? 127.5f : 7.5f;
  constexpr int32_t kChunk = kVectors * kLanes;
  const DF d;
  const DU du;
  const float* q[kHeads];
  for (int h = 0; h < kHeads; ++h) q[h] = heads[h].q_rotated;
  const int32_t first = run.begin / kChunk * kChunk;
  for (int32_t t = first; t < run.end; t += kChunk) {
    const int64_t tile_words =
        int64_t{t / kTileTokens} * run.head_dim * kTileTokens / kOctet + t % kTileTokens;
    VF logit[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVectors; ++v) logit[h][v] = hn::Set(d, mean_dot[h]);
    }
    for (int32_t g = 0; g < run.groups.count; ++g) {
      VF acc[kHeads][kVectors];
      PAGODA_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        PAGODA_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          acc[h][v] = hn::Set(d, -kCentre * heads[h].q_sum[g]);
        }
      }
      for (int32_t c = run.groups.begin[g]; c < run.groups.begin[g + 1]; c += kOctet) {
        const int64_t at = tile_words + int64_t{c} * (kTileTokens / kOctet);
        VU hi[kVectors];
        VU lo[kVectors];
        PAGODA_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          hi[v] = hn::Load(du, k.hi + at + v * kLanes);
          lo[v] = kBoth ? hn::Load(du, k.lo + at + v * kLanes) : hi[v];
        }
        PrefetchLine(k.next_hi + at);
        if (kChunk > 16) PrefetchLine(k.next_hi + at + 16);
        if (kBoth) PrefetchLine(k.next_lo + at);
        if (kBoth && kChunk > 16) PrefetchLine(k.next_lo + at + 16);
        DotOctet<kHeads, kVectors, kBoth>(hi, lo, q, c, acc);
      }
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        VF a = LoadFp16(k.scales + int64_t{g} * run.page_tokens + t + v * kLanes);
        if (kBoth) a = hn::Mul(a, hn::Set(d, 0.0625f));
        PAGODA_UNROLL
        for (int h = 0; h < kHeads; ++h) logit[h][v] = hn::MulAdd(acc[h][v], a, logit[h][v]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(logit[h][v], d, heads[h].p + t + v * kLanes);
      }
    }
  }
}

// o_rotated[c .. c + kVectors * kLanes) += p_scaled . u for all tokens; one scale group.
template <int kHeads, int kVectors, bool kBoth>
HWY_INLINE void ValueColumns(HeadState* heads, const CodesOf& v, const RunArgs& run, int32_t c,
                             int32_t group) {
  const DF d;
  const DU du;
  const int64_t v_dim = AlignUp(run.head_dim, 32);
  const float* p[kHeads];
  VF acc[kHeads][kVectors];
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    p[h] = heads[h].p_scaled[group];
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      acc[h][i] = hn::Load(d, heads[h].o_rotated + c + i * kLanes);
    }
  }
  const int32_t first = run.begin / kOctet * kOctet;
  for (int32_t t = first; t < run.end; t += kOctet) {
    const int64_t at = int64_t{t / kTileTokens} * v_dim * 4 + int64_t{c / 32} * 128 +
                       t % kTileTokens / kOctet * 32 + c % 32;
    VU hi[kVectors];
    VU lo[kVectors];
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      hi[i] = hn::Load(du, v.hi + at + i * kLanes);
      lo[i] = kBoth ? hn::Load(du, v.lo + at + i * kLanes) : hi[i];
    }
    PrefetchLine(v.next_hi + at);
    if (kVectors * kLanes > 16) PrefetchLine(v.next_hi + at + 16);
    if (kBoth) PrefetchLine(v.next_lo + at);
    if (kBoth && kVectors * kLanes > 16) PrefetchLine(v.next_lo + at + 16);
    const float* weights[kHeads];
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) weights[h] = p[h];
    DotOctet<kHeads, kVectors, kBoth>(hi, lo, weights, t, acc);
  }
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) hn::Store(acc[h][i], d, heads[h].o_rotated + c + i * kLanes);
  }
}

template <int kHeads, bool kBoth>
void ValueCodes(HeadState* heads, const CodesOf& v, const RunArgs& run) {
  constexpr int32_t kPair = 2 * kLanes;
  const auto v_dim = static_cast<int32_t>(AlignUp(run.head_dim, 32));
  const auto last = run.groups.count - 1;
  for (int32_t c = 0, g = 0; c < v_dim;) {
    while (g < last && c >= run.groups.begin[g + 1]) ++g;
    // Two vectors share their weights unless a group ends between them.
    const bool split = g < last && c + kLanes >= run.groups.begin[g + 1];
    if (split || c % 32 + kPair > 32) {
      ValueColumns<kHeads, 1, kBoth>(heads, v, run, c, g);
      c += kLanes;
    } else {
      ValueColumns<kHeads, 2, kBoth>(heads, v, run, c, g);
      c += kPair;
    }
  }
}

// ---- raw16 rows
// ----------------------------------------------------------------------------------

// A tag whose vectors of word pairs divide a row: `kWords` lanes.
template <int kWords>
using WordTag = hn::CappedTag<uint32_t, kWords>;

// Sums of the lanes of four vectors, to target[0..3], in one fixed order.
#if HWY_TARGET == HWY_SCALAR
template <class D, class V = hn::Vec<D>>
HWY_INLINE void StoreSums(D d, const V (&x)[4], float* target) {
  for (int i = 0; i < 4; ++i) hn::Store(x[i], d, target + i);
}
#else
template <class D, class V>
HWY_INLINE void StoreBlockSums(D d, V sums, float* target) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    hn::StoreU(sums, d, target);
  } else {
    const hn::Half<D> half;
    StoreBlockSums(half, hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)), target);
  }
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE void StoreSums(D d, const V (&x)[4], float* target) {
  const hn::Repartition<uint64_t, D> wide;
  const V low = hn::Add(hn::InterleaveLower(d, x[0], x[1]), hn::InterleaveUpper(d, x[0], x[1]));
  const V high = hn::Add(hn::InterleaveLower(d, x[2], x[3]), hn::InterleaveUpper(d, x[2], x[3]));
  const auto low_pairs = hn::BitCast(wide, low);
  const auto high_pairs = hn::BitCast(wide, high);
  const V sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, low_pairs, high_pairs)),
                         hn::BitCast(d, hn::InterleaveUpper(wide, low_pairs, high_pairs)));
  StoreBlockSums(d, sums, target);
}
#endif

// Logits of rows [begin, end), four at a time; a last group of fewer reads its last row again.
template <int kHeads, int kWords>
void RawKeys(HeadState* heads, const uint16_t* rows, const uint16_t* next, const RunArgs& run) {
  constexpr int kTokens = 4;
  const WordTag<kWords> dw;
  const hn::Rebind<float, WordTag<kWords>> d;
  using V = hn::Vec<decltype(d)>;
  const auto upper = hn::Set(dw, 0xffff0000u);
  const auto lanes = static_cast<int32_t>(hn::Lanes(dw));
  for (int32_t t = run.begin; t < run.end; t += kTokens) {
    const uint32_t* row[kTokens];
    for (int i = 0; i < kTokens; ++i) {
      const int64_t token = std::min(t + i, run.end - 1);
      row[i] = reinterpret_cast<const uint32_t*>(rows + token * run.head_dim);
    }
    V acc[kHeads][kTokens];
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      PAGODA_UNROLL
      for (int i = 0; i < kTokens; ++i) acc[h][i] = hn::Zero(d);
    }
    for (int32_t w = 0; w < run.head_dim / 2; w += lanes) {
      V odd[kTokens];
      PAGODA_UNROLL
      for (int i = 0; i < kTokens; ++i) {
        const auto words = hn::LoadU(dw, row[i] + w);
        odd[i] = hn::BitCast(d, hn::And(words, upper));
        const V even = hn::BitCast(d, hn::ShiftLeft<16>(words));
        PAGODA_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          acc[h][i] = hn::MulAdd(even, hn::Load(d, heads[h].q_even + w), acc[h][i]);
        }
      }
      PAGODA_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const V query = hn::Load(d, heads[h].q_odd + w);
        PAGODA_UNROLL
        for (int i = 0; i < kTokens; ++i) acc[h][i] = hn::MulAdd(odd[i], query, acc[h][i]);
      }
    }
    const uint16_t* ahead = next + int64_t{t} * run.head_dim;
    for (int32_t i = 0; i < kTokens * run.head_dim; i += 32) PrefetchLine(ahead + i);
    for (int h = 0; h < kHeads; ++h) {
      float sums[kTokens];
      StoreSums(d, acc[h], sums);
      for (int i = 0; i < std::min(kTokens, run.end - t); ++i) heads[h].p[t + i] = sums[i];
    }
  }
}

// o_even, o_odd += p . rows, kVectors word vectors from word w on. Prefetches rows of `next`,
// unless null.
template <int kHeads, int kWords, int kVectors>
HWY_INLINE void RawColumns(HeadState* heads, const uint16_t* rows, const uint16_t* next,
                           const RunArgs& run, int32_t w) {
  const WordTag<kWords> dw;
  const hn::Rebind<float, WordTag<kWords>> d;
  using V = hn::Vec<decltype(d)>;
  constexpr auto kStep = static_cast<int32_t>(HWY_MIN(HWY_LANES(uint32_t), kWords));
  const auto upper = hn::Set(dw, 0xffff0000u);
  V even[kHeads][kVectors];
  V odd[kHeads][kVectors];
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      even[h][i] = hn::Load(d, heads[h].o_even + w + i * kStep);
      odd[h][i] = hn::Load(d, heads[h].o_odd + w + i * kStep);
    }
  }
  for (int32_t t = run.begin; t < run.end; ++t) {
    const auto* row = reinterpret_cast<const uint32_t*>(rows + int64_t{t} * run.head_dim) + w;
    for (int32_t c = 0; next != nullptr && c < run.head_dim; c += 32) {
      PrefetchLine(next + int64_t{t} * run.head_dim + c);
    }
    V x_even[kVectors];
    V x_odd[kVectors];
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const auto words = hn::LoadU(dw, row + i * kStep);
      x_even[i] = hn::BitCast(d, hn::ShiftLeft<16>(words));
      x_odd[i] = hn::BitCast(d, hn::And(words, upper));
    }
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const V weight = hn::Set(d, heads[h].p[t]);
      PAGODA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        even[h][i] = hn::MulAdd(weight, x_even[i], even[h][i]);
        odd[h][i] = hn::MulAdd(weight, x_odd[i], odd[h][i]);
      }
    }
  }
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      hn::Store(even[h][i], d, heads[h].o_even + w + i * kStep);
      hn::Store(odd[h][i], d, heads[h].o_odd + w + i * kStep);
    }
  }
}

template <int kHeads, int kWords>
void RawValues(HeadState* heads, const uint16_t* rows, const uint16_t* next, const RunArgs& run) {
  constexpr auto kStep = static_cast<int32_t>(HWY_MIN(HWY_LANES(uint32_t), kWords));
  const int32_t word_count = run.head_dim / 2;
  int32_t w = 0;
  constexpr int kWide = kHeads <= 2 || kManyRegisters ? 2 : 1;
  for (; w + kWide * kStep <= word_count; w += kWide * kStep) {
    RawColumns<kHeads, kWords, kWide>(heads, rows, w == 0 ? next : nullptr, run, w);
  }
  for (; w < word_count; w += kStep) {
    RawColumns<kHeads, kWords, 1>(heads, rows, w == 0 ? next : nullptr, run, w);
  }
}

// ---- Softmax and the loops
// -----------------------------------------------------------------------

// Logits of [begin, end) to weights, in place; the rest of the vectors they touch weigh 0. What was
// accumulated before is brought to the new maximum.
void Softmax(HeadState& head, int32_t begin, int32_t end, int32_t head_dim) {
  const DF d;
  const DI di;
  const int32_t first = begin / 16 * 16;
  const auto last = static_cast<int32_t>(AlignUp(end, 16));
  const VF minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF greatest = minus_infinity;
  for (int32_t t = first; t < last; t += kLanes) {
    VF x = hn::Load(d, head.p + t);
    if (t < begin || t + kLanes > end) {
      const auto token = hn::Iota(di, t);
      const auto hidden =
          hn::Or(hn::Lt(token, hn::Set(di, begin)), hn::Not(hn::Lt(token, hn::Set(di, end))));
      x = hn::IfThenElse(hn::RebindMask(d, hidden), minus_infinity, x);
      hn::Store(x, d, head.p + t);
    }
    greatest = hn::Max(greatest, x);
  }
  const float new_max = std::max(head.max, MaxOfLanes(greatest));
  if (new_max != head.max) {
    const float factor = Exp2One(head.max - new_max);
    const VF scale = hn::Set(d, factor);
    head.max = new_max;
    head.sum *= factor;
    for (float& bias : head.bias) bias *= factor;
    const auto v_dim = static_cast<int32_t>(AlignUp(head_dim, 32));
    for (int32_t c = 0; c < v_dim; c += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, head.o_rotated + c), scale), d, head.o_rotated + c);
    }
    for (int32_t c = 0; c < v_dim / 2; c += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, head.o_even + c), scale), d, head.o_even + c);
      hn::Store(hn::Mul(hn::Load(d, head.o_odd + c), scale), d, head.o_odd + c);
    }
  }
  const VF vmax = hn::Set(d, head.max);
  VF total = hn::Zero(d);
  for (int32_t t = first; t < last; t += kLanes) {
    const VF weight = Exp2(hn::Sub(hn::Load(d, head.p + t), vmax));
    total = hn::Add(total, weight);
    hn::Store(weight, d, head.p + t);
  }
  head.sum += SumOfLanes(total);
}

// p_scaled and the bias of V codes.
void ScaleWeights(HeadState& head, const uint16_t* scales, bool both, const RunArgs& run) {
  const DF d;
  const VF factor = hn::Set(d, both ? 0.0625f : 1.0f);
  const int32_t first = run.begin / 16 * 16;
  const auto last = static_cast<int32_t>(AlignUp(run.end, 16));
  for (int32_t g = 0; g < run.groups.count; ++g) {
    VF total = hn::Zero(d);
    for (int32_t t = first; t < last; t += kLanes) {
      const VF a = hn::Mul(LoadFp16(scales + int64_t{g} * run.page_tokens + t), factor);
      const VF scaled = hn::Mul(hn::Load(d, head.p + t), a);
      total = hn::Add(total, scaled);
      hn::Store(scaled, d, head.p_scaled[g] + t);
    }
    head.bias[g] += (both ? 127.5f : 7.5f) * SumOfLanes(total);
  }
}

float DotMean(const HeadState& head, const uint16_t* mean, int32_t head_dim) {
  const DF d;
  VF total = hn::Zero(d);
  for (int32_t c = 0; c < head_dim; c += kLanes) {
    total = hn::MulAdd(hn::Load(d, head.q_rotated + c), LoadFp16(mean + c), total);
  }
  return SumOfLanes(total);
}

template <int kHeads>
void KeyPass(HeadState* heads, const PageTile& tile, const CodesOf& k, const RunArgs& run) {
  float mean_dot[kHeads];
  for (int h = 0; h < kHeads; ++h) mean_dot[h] = DotMean(heads[h], tile.k_hi_params, run.head_dim);
  if (k.lo != nullptr) {
    KeyCodes<kHeads, true>(heads, mean_dot, k, run);
  } else {
    KeyCodes<kHeads, false>(heads, mean_dot, k, run);
  }
}

template <int kHeads>
void ValuePass(HeadState* heads, const CodesOf& v, const RunArgs& run) {
  for (int h = 0; h < kHeads; ++h) ScaleWeights(heads[h], v.scales, v.lo != nullptr, run);
  if (v.lo != nullptr) {
    ValueCodes<kHeads, true>(heads, v, run);
  } else {
    ValueCodes<kHeads, false>(heads, v, run);
  }
}

template <int kHeads>
void CodesPass(HeadState* heads, const PageTile& tile, const CodesOf& k, const CodesOf& v,
               const RunArgs& run) {
  KeyPass<kHeads>(heads, tile, k, run);
  for (int h = 0; h < kHeads; ++h) Softmax(heads[h], run.begin, run.end, run.head_dim);
  ValuePass<kHeads>(heads, v, run);
}

template <int kHeads, int kWords>
void RawPass(HeadState* heads, const TokenRun& tokens, const PageTile& next, const RunArgs& run) {
  const uint16_t* next_k = next.raw_k != nullptr ? next.raw_k : tokens.raw_k;
  const uint16_t* next_v = next.raw_v != nullptr ? next.raw_v : tokens.raw_v;
  RawKeys<kHeads, kWords>(heads, tokens.raw_k, next_k, run);
  for (int h = 0; h < kHeads; ++h) Softmax(heads[h], run.begin, run.end, run.head_dim);
  RawValues<kHeads, kWords>(heads, tokens.raw_v, next_v, run);
}

template <int kHeads>
void RawPassOf(HeadState* heads, const TokenRun& tokens, const PageTile& next, const RunArgs& run) {
  const int32_t words = run.head_dim / 2;
  if (kLanes >= 16 && words % 16 == 0) {
    RawPass<kHeads, 16>(heads, tokens, next, run);
  } else if (kLanes >= 8 && words % 8 == 0) {
    RawPass<kHeads, 8>(heads, tokens, next, run);
  } else {
    RawPass<kHeads, 4>(heads, tokens, next, run);
  }
}

void AttendRaw(HeadState* heads, int32_t head_count, const TokenRun& tokens, const PageTile& next,
               const RunArgs& run) {
  while (head_count > 0) {
    const int32_t pass = std::min(head_count, kHeadsMax);
    if (pass == 4) RawPassOf<4>(heads, tokens, next, run);
    if (pass == 3) RawPassOf<3>(heads, tokens, next, run);
    if (pass == 2) RawPassOf<2>(heads, tokens, next, run);
    if (pass == 1) RawPassOf<1>(heads, tokens, next, run);
    heads += pass;
    head_count -= pass;
  }
}

void AttendCodes(HeadState* heads, int32_t head_count, const PageTile& tile, const PageTile& next,
                 const RunArgs& run) {
  CodesOf k{tile.k_hi, tile.k_lo, tile.k_lo_params, next.k_hi, next.k_lo};
  CodesOf v{tile.v_hi, tile.v_lo, tile.v_lo_params, next.v_hi, next.v_lo};
  if (k.lo == nullptr) k.scales = tile.k_hi_params + MeanWords(run.head_dim);
  if (v.lo == nullptr) v.scales = tile.v_hi_params;
  // A next tile without this plane: stay here, which costs nothing.
  for (CodesOf* codes : {&k, &v}) {
    if (codes->next_hi == nullptr) codes->next_hi = codes->hi;
    if (codes->next_lo == nullptr) codes->next_lo = codes->lo;
  }
  while (head_count > 0) {
    const int32_t pass = kManyRegisters && head_count >= 8 ? 8 : std::min(head_count, kHeadsMax);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
    if (pass == 8) CodesPass<8>(heads, tile, k, v, run);
#endif
    if (pass == 4) CodesPass<4>(heads, tile, k, v, run);
    if (pass == 3) CodesPass<3>(heads, tile, k, v, run);
    if (pass == 2) CodesPass<2>(heads, tile, k, v, run);
    if (pass == 1) CodesPass<1>(heads, tile, k, v, run);
    heads += pass;
    head_count -= pass;
  }
}

void StartHead(const float* q, float scale, const RunArgs& run, HeadState& head) {
  head = HeadState{};
  head.max = kNoMax;
  for (int32_t c = 0; c < run.head_dim; ++c) {
    head.q_rotated[c] = q[c] * scale;
    (c % 2 == 0 ? head.q_even : head.q_odd)[c / 2] = head.q_rotated[c];
  }
  RotateForward(head.q_rotated, run.head_dim);
  for (int32_t g = 0; g < run.groups.count; ++g) {
    for (int32_t c = run.groups.begin[g]; c < run.groups.begin[g + 1]; ++c) {
      head.q_sum[g] += head.q_rotated[c];
    }
  }
}

void FinishHead(HeadState& head, const RunArgs& run, float* out, float* lse2) {
  for (int32_t g = 0; g < run.groups.count; ++g) {
    for (int32_t c = run.groups.begin[g]; c < run.groups.begin[g + 1]; ++c) {
      head.o_rotated[c] -= head.bias[g];
    }
  }
  RotateBackward(head.o_rotated, run.head_dim);
  const bool empty = head.sum == 0.0f;
  const float inv = empty ? 0.0f : 1.0f / head.sum;
  for (int32_t c = 0; c < run.head_dim; ++c) {
    out[c] = ((c % 2 == 0 ? head.o_even : head.o_odd)[c / 2] + head.o_rotated[c]) * inv;
  }
  if (lse2 == nullptr) return;
  *lse2 = empty ? -std::numeric_limits<float>::infinity() : head.max + std::log2(head.sum);
}

void Decode(const AttentionParams& a, HeadState* heads) {
  RunArgs run{a.head_dim, a.page_tokens, 0, 0, GroupsOf(a.head_dim)};
  const float scale = a.softmax_scale * 1.44269504088896340736f;
  for (int32_t h = 0; h < a.group_count; ++h) {
    StartHead(a.q + int64_t{h} * a.head_dim, scale, run, heads[h]);
  }
  for (size_t i = 0; i < a.pages.size(); ++i) {
    const PageTile& tile = a.pages[i];
    const PageTile& next = a.pages[std::min(i + 1, a.pages.size() - 1)];
    TokenRun runs[kRunsMax];
    const int32_t run_count = RunsOf(tile, a.first_position, runs);
    for (int32_t j = 0; j < run_count; ++j) {
      run.begin = runs[j].begin;
      run.end = runs[j].end;
      if (runs[j].raw_k != nullptr) {
        AttendRaw(heads, a.group_count, runs[j], next, run);
      } else {
        AttendCodes(heads, a.group_count, tile, next, run);
      }
    }
  }
  for (int32_t h = 0; h < a.group_count; ++h) {
    FinishHead(heads[h], run, a.out + int64_t{h} * a.head_dim,
               a.lse2 == nullptr ? nullptr : a.lse2 + h);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagoda::kernels {

HWY_EXPORT(Decode);

void DecodeAttention(const AttentionParams& params, AttentionScratch& scratch) {
  constexpr int64_t kFloats = sizeof(HeadState) / sizeof(float);
  auto* heads = reinterpret_cast<HeadState*>(scratch.Floats(params.group_count * kFloats));
  HWY_DYNAMIC_DISPATCH(Decode)(params, heads);
}

}  // namespace pagoda::kernels
#endif  // HWY_ONCE
