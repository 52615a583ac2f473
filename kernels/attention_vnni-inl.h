// Decode over codes by integers, for processors with AVX512-VNNI: vpdpbusd multiplies four codes of
// a word with four bytes and adds them up, for sixteen tokens (K) or channels (V) at once.
//
// Queries and weights are integers of 15 bits and a sign, n = 256 * digit1 + digit0, so that two
// instructions a word are nearly as exact as floats; sums are exact:
//
//   q_c ~ step * n_c       sum_c q_c (u_c - centre) = step / 2 * (2 * sum n_c u_c - 2 centre sum
//   n_c) p_t a_t ~ step * n_t   with p_t relative to the tile's own maximum; a step for each tile,
//   group
//
// Included once per target, by Highway's rules; empty but for AVX-512.
#if defined(PAGODA_KERNELS_ATTENTION_VNNI_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PAGODA_KERNELS_ATTENTION_VNNI_INL_H
#undef PAGODA_KERNELS_ATTENTION_VNNI_INL_H
#else
#define PAGODA_KERNELS_ATTENTION_VNNI_INL_H
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/attention_codes-inl.h"
#include "kernels/attention_simd-inl.h"
#include "kernels/decode_state.h"

#if HWY_TARGET == HWY_AVX3

// Highway's targets have no VNNI before the one that wants a dozen other extensions as well.
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace pagoda::kernels {
namespace HWY_NAMESPACE {

using VI = hn::Vec<DI>;

// acc[h][digit][v] += words of four codes times the digits of each head's element quad.
template <int kHeads, int kVectors>
HWY_INLINE void DotQuad(const VU (&codes)[kVectors], const int32_t* const (&digits)[kHeads][2],
                        int64_t quad, VI (&acc)[kHeads][2][kVectors]) {
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    PAGODA_UNROLL
    for (int digit = 0; digit < 2; ++digit) {
      const __m512i factors = _mm512_set1_epi32(digits[h][digit][quad]);
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        acc[h][digit][v].raw = _mm512_dpbusd_epi32(acc[h][digit][v].raw, codes[v].raw, factors);
      }
    }
  }
}

// Two octets' words become two words of codes each.
template <int kVectors, bool kBoth>
HWY_INLINE void LoadOctet(const uint32_t* hi, const uint32_t* lo, VU (&first)[kVectors],
                          VU (&second)[kVectors]) {
  PAGODA_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const VU upper = hn::Load(DU(), hi + v * kLanes);
    const ElementBytes bytes =
        kBoth ? MergeWords(upper, hn::Load(DU(), lo + v * kLanes)) : SplitWords(upper);
    first[v] = bytes.first;
    second[v] = bytes.second;
  }
}

// 2 * sum n u - twice_centre * sum n, as floats.
HWY_INLINE VF Centred(VI digit1, VI digit0, int32_t twice_centre_sum) {
  const VI doubled = hn::Add(hn::ShiftLeft<9>(digit1), hn::ShiftLeft<1>(digit0));
  return hn::ConvertTo(DF(), hn::Sub(doubled, hn::Set(DI(), twice_centre_sum)));
}

template <int kHeads, bool kBoth>
void KeyIntegers(HeadState* heads, const float (&mean_dot)[kHeads], const CodesOf& k,
                 const RunArgs& run) {
  constexpr int kVectors = 2;
  constexpr int32_t kTwiceCentre = kBoth ? 255 : 15;
  const DF d;
  const int32_t* digits[kHeads][2];
  for (int h = 0; h < kHeads; ++h) {
    for (int digit = 0; digit < 2; ++digit) digits[h][digit] = heads[h].q_digits[digit];
  }
  const int32_t first = run.begin / kTileTokens * kTileTokens;
  for (int32_t t = first; t < run.end; t += kTileTokens) {
    const int64_t tile_words = int64_t{t} * run.head_dim / kOctet;
    VF logit[kHeads][kVectors];
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) logit[h][v] = hn::Set(d, mean_dot[h]);
    }
    for (int32_t g = 0; g < run.groups.count; ++g) {
      VI acc[kHeads][2][kVectors];
      PAGODA_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        PAGODA_UNROLL
        for (int v = 0; v < kVectors; ++v) acc[h][0][v] = acc[h][1][v] = hn::Zero(DI());
      }
      for (int32_t c = run.groups.begin[g]; c < run.groups.begin[g + 1]; c += kOctet) {
        const int64_t at = tile_words + int64_t{c} * (kTileTokens / kOctet);
        VU quad0[kVectors];
        VU quad1[kVectors];
        LoadOctet<kVectors, kBoth>(k.hi + at, kBoth ? k.lo + at : nullptr, quad0, quad1);
        PrefetchLine(k.next_hi + at);
        PrefetchLine(k.next_hi + at + 16);
        if (kBoth) PrefetchLine(k.next_lo + at);
        if (kBoth) PrefetchLine(k.next_lo + at + 16);
        DotQuad<kHeads, kVectors>(quad0, digits, c / 4, acc);
        DotQuad<kHeads, kVectors>(quad1, digits, c / 4 + 1, acc);
      }
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const VF a = LoadFp16(k.scales + int64_t{g} * run.page_tokens + t + v * kLanes);
        PAGODA_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          const VF sum = Centred(acc[h][1][v], acc[h][0][v], kTwiceCentre * heads[h].q_total[g]);
          const float half_step = heads[h].q_step[g] * (kBoth ? 0.5f * 0.0625f : 0.5f);
          logit[h][v] = hn::MulAdd(hn::Mul(a, hn::Set(d, half_step)), sum, logit[h][v]);
        }
      }
    }
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(logit[h][v], d, heads[h].p + t + v * kLanes);
      }
    }
  }
}

// How a tile's weights enter what was accumulated: times tile[h], after times old[h].
template <int kHeads>
struct TileFactors {
  float max[kHeads];  // greatest logit of the run
  float old[kHeads];
  float tile[kHeads];
};

// Logits of the run hidden outside it, their maxima, and new running maxima where one grew by more
// than 2^8: below that floats have room, and nothing accumulated needs to be touched.
template <int kHeads>
HWY_INLINE TileFactors<kHeads> FactorsOf(HeadState* heads, const RunArgs& run) {
  constexpr float kRoom = 8;
  const DF d;
  const DI di;
  const int32_t first = run.begin / 16 * 16;
  const auto last = static_cast<int32_t>(AlignUp(run.end, 16));
  const VF minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF greatest[kHeads];
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) greatest[h] = minus_infinity;
  for (int32_t t = first; t < last; t += kLanes) {
    const bool cut = t < run.begin || t + kLanes > run.end;
    const auto token = hn::Iota(di, t);
    const auto hidden = hn::RebindMask(d, hn::Or(hn::Lt(token, hn::Set(di, run.begin)),
                                                 hn::Not(hn::Lt(token, hn::Set(di, run.end)))));
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      VF x = hn::Load(d, heads[h].p + t);
      if (cut) {
        x = hn::IfThenElse(hidden, minus_infinity, x);
        hn::Store(x, d, heads[h].p + t);
      }
      greatest[h] = hn::Max(greatest[h], x);
    }
  }
  TileFactors<kHeads> factors;
  HWY_ALIGN float exponents[16] = {};
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    factors.max[h] = MaxOfLanes(greatest[h]);
    const float old_max = heads[h].max;
    if (factors.max[h] > old_max + kRoom) heads[h].max = factors.max[h];
    exponents[h] = old_max - heads[h].max;
    exponents[8 + h] = factors.max[h] - heads[h].max;
  }
  const VF powers = Exp2(hn::Load(d, exponents));
  hn::Store(powers, d, exponents);
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    factors.old[h] = exponents[h];
    factors.tile[h] = exponents[8 + h];
  }
  return factors;
}

// Logits to weights w relative to the tile's own maximum; w * a as digits, one step for each group,
// the largest scale's. What was accumulated before is brought to a new running maximum.
template <int kHeads, bool kBoth>
HWY_INLINE void Weigh(HeadState* heads, const uint16_t* scales, const RunArgs& run) {
  constexpr float kCentre = kBoth ? 127.5f : 7.5f;
  const DF d;
  const int32_t first = run.begin / 16 * 16;
  const auto last = static_cast<int32_t>(AlignUp(run.end, 16));
  const TileFactors<kHeads> factors = FactorsOf<kHeads>(heads, run);
  VF total[kHeads];
  VF max[kHeads];
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    if (factors.old[h] != 1.0f) Rescale(heads[h], factors.old[h], run.head_dim);
    total[h] = hn::Zero(d);
    max[h] = hn::Set(d, factors.max[h]);
  }
  for (int32_t g = 0; g < run.groups.count; ++g) {
    const uint16_t* a = scales + int64_t{g} * run.page_tokens;
    VF greatest = hn::Zero(d);
    for (int32_t t = first; t < last; t += kLanes) {
      greatest = hn::Max(greatest, hn::Abs(LoadFp16(a + t)));
    }
    const float most = MaxOfLanes(greatest);
    const VF inverse = hn::Set(d, most > 0 ? kDigitsMax / most : 0.0f);
    const float step = most / kDigitsMax * (kBoth ? 0.0625f : 1.0f);
    VI sum[kHeads];
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) sum[h] = hn::Zero(DI());
    for (int32_t t = first; t < last; t += kLanes) {
      const VF unit = hn::Mul(LoadFp16(a + t), inverse);
      PAGODA_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        VF weight = hn::Load(d, heads[h].p + t);
        if (g == 0) {
          weight = Exp2(hn::Sub(weight, max[h]));
          total[h] = hn::Add(total[h], weight);
          if (run.groups.count > 1) hn::Store(weight, d, heads[h].p + t);
        }
        const VI n = hn::NearestInt(hn::Mul(weight, unit));
        const VI digit1 = hn::ShiftRight<8>(hn::Add(n, hn::Set(DI(), 128)));
        sum[h] = hn::Add(sum[h], n);
        auto* bytes0 = reinterpret_cast<int8_t*>(heads[h].p_digits[0][g]) + t;
        auto* bytes1 = reinterpret_cast<int8_t*>(heads[h].p_digits[1][g]) + t;
        // The low byte is digit0: n - 256 * digit1 differs from it by a multiple of 256.
        _mm_store_si128(reinterpret_cast<__m128i*>(bytes0), _mm512_cvtepi32_epi8(n.raw));
        _mm_store_si128(reinterpret_cast<__m128i*>(bytes1), _mm512_cvtepi32_epi8(digit1.raw));
      }
    }
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      heads[h].p_step[g] = step * factors.tile[h];
      float* bias = heads[h].bias_lanes[g];
      hn::Store(hn::MulAdd(hn::Set(d, heads[h].p_step[g] * kCentre), hn::ConvertTo(d, sum[h]),
                           hn::Load(d, bias)),
                d, bias);
    }
  }
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    float* sums = heads[h].sum_lanes;
    hn::Store(hn::MulAdd(hn::Set(d, factors.tile[h]), total[h], hn::Load(d, sums)), d, sums);
  }
}

// o_rotated[c .. c + kVectors * kLanes) += p a u for all tokens; one scale group.
template <int kHeads, int kVectors, bool kBoth>
HWY_INLINE void ValueIntegerColumns(HeadState* heads, const CodesOf& v, const RunArgs& run,
                                    int32_t c, int32_t group) {
  const DF d;
  const int64_t v_dim = AlignUp(run.head_dim, 32);
  const int32_t* digits[kHeads][2];
  VI acc[kHeads][2][kVectors];
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    PAGODA_UNROLL
    for (int digit = 0; digit < 2; ++digit) {
      digits[h][digit] = heads[h].p_digits[digit][group];
      PAGODA_UNROLL
      for (int i = 0; i < kVectors; ++i) acc[h][digit][i] = hn::Zero(DI());
    }
  }
  const int32_t first = run.begin / kOctet * kOctet;
  for (int32_t t = first; t < run.end; t += kOctet) {
    const int64_t at = int64_t{t / kTileTokens} * v_dim * 4 + int64_t{c / 32} * 128 +
                       t % kTileTokens / kOctet * 32 + c % 32;
    VU quad0[kVectors];
    VU quad1[kVectors];
    LoadOctet<kVectors, kBoth>(v.hi + at, kBoth ? v.lo + at : nullptr, quad0, quad1);
    PrefetchLine(v.next_hi + at);
    if (kVectors > 1) PrefetchLine(v.next_hi + at + 16);
    if (kBoth) PrefetchLine(v.next_lo + at);
    if (kBoth && kVectors > 1) PrefetchLine(v.next_lo + at + 16);
    DotQuad<kHeads, kVectors>(quad0, digits, t / 4, acc);
    DotQuad<kHeads, kVectors>(quad1, digits, t / 4 + 1, acc);
  }
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    const VF step = hn::Set(d, heads[h].p_step[group]);
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      float* o = heads[h].o_rotated + c + i * kLanes;
      const VI sum = hn::Add(hn::ShiftLeft<8>(acc[h][1][i]), acc[h][0][i]);
      hn::Store(hn::MulAdd(step, hn::ConvertTo(d, sum), hn::Load(d, o)), d, o);
    }
  }
}

template <int kHeads, bool kBoth>
void ValueIntegers(HeadState* heads, const CodesOf& v, const RunArgs& run) {
  Weigh<kHeads, kBoth>(heads, v.scales, run);
  const auto v_dim = static_cast<int32_t>(AlignUp(run.head_dim, 32));
  const auto last = run.groups.count - 1;
  for (int32_t c = 0, g = 0; c < v_dim;) {
    while (g < last && c >= run.groups.begin[g + 1]) ++g;
    // Two vectors share their weights unless a group ends between them.
    if ((g < last && c + kLanes >= run.groups.begin[g + 1]) || c % 32 != 0) {
      ValueIntegerColumns<kHeads, 1, kBoth>(heads, v, run, c, g);
      c += kLanes;
    } else {
      ValueIntegerColumns<kHeads, 2, kBoth>(heads, v, run, c, g);
      c += 2 * kLanes;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_POP_ATTRIBUTES

#endif  // HWY_TARGET == HWY_AVX3

#endif  // include guard per target
