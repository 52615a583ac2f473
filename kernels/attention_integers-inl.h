// Decode over codes by integers: four codes of a word times four bytes, added up, for a vector of
// tokens (K) or channels (V) at once. AVX512-VNNI has one instruction for it (vpdpbusd): queries
// and weights are integers of two bytes, n = 256 * digit1 + digit0, nearly as exact as floats. AVX2
// needs three (vpmaddubsw, additions in 16 bits, vpmaddwd), which pays for nibbles and integers of
// one byte alone; next to the error of 4-bit codes theirs is small (README). Sums are exact:
//
//   q_c ~ step * n_c       sum_c q_c (u_c - centre) = step / 2 * (2 * sum n_c u_c - 2 centre sum
//   n_c) p_t a_t ~ step * n_t   with p_t relative to the tile's own maximum; a step for each tile,
//   group
//
// Included once per target, by Highway's rules; empty on the others.
#if defined(PAGODA_KERNELS_ATTENTION_INTEGERS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PAGODA_KERNELS_ATTENTION_INTEGERS_INL_H
#undef PAGODA_KERNELS_ATTENTION_INTEGERS_INL_H
#else
#define PAGODA_KERNELS_ATTENTION_INTEGERS_INL_H
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/attention_codes-inl.h"
#include "kernels/attention_simd-inl.h"
#include "kernels/decode_state.h"

#undef PAGODA_INTEGERS_ATTRIBUTES
#if HWY_TARGET == HWY_AVX3
// Highway's targets have no VNNI before the one that wants a dozen other extensions as well.
#define PAGODA_INTEGERS_ATTRIBUTES HWY_TARGET_STR ",avx512vnni"
#elif HWY_TARGET == HWY_AVX2
#define PAGODA_INTEGERS_ATTRIBUTES HWY_TARGET_STR
#endif

#ifdef PAGODA_INTEGERS_ATTRIBUTES

HWY_PUSH_ATTRIBUTES(PAGODA_INTEGERS_ATTRIBUTES)
namespace pagoda::kernels {
namespace HWY_NAMESPACE {

using VI = hn::Vec<DI>;

// kIntegerVectors: vectors of tokens or channels that share the digits of a quad.
#if HWY_TARGET == HWY_AVX3
constexpr int kDigits = 2;                // bytes of an integer
constexpr bool kIntegersTakeBoth = true;  // 8-bit codes, not nibbles alone
#else
constexpr int kDigits = 1;
constexpr bool kIntegersTakeBoth = false;
#endif
constexpr int kIntegerVectors = 2;

// The largest integer whose digits are in [-128, 127], and so are its negative's.
constexpr float kIntegerMax = kDigits > 1 ? 127 * 256 + 127 : 127;

// The rotated query as integers, a step for each group.
void QueryDigits(const RunArgs& run, HeadState& head) {
  auto* digits0 = reinterpret_cast<int8_t*>(head.q_digits[0]);
  auto* digits1 = reinterpret_cast<int8_t*>(head.q_digits[kDigits - 1]);
  for (int32_t g = 0; g < run.groups.count; ++g) {
    float most = 0;
    for (int32_t c = run.groups.begin[g]; c < run.groups.begin[g + 1]; ++c) {
      most = std::max(most, std::fabs(head.q_rotated[c]));
    }
    head.q_step[g] = most / kIntegerMax;
    head.q_total[g] = 0;
    for (int32_t c = run.groups.begin[g]; c < run.groups.begin[g + 1]; ++c) {
      const auto n =
          most > 0 ? static_cast<int32_t>(std::lrintf(head.q_rotated[c] * (kIntegerMax / most)))
                   : 0;
      const int32_t digit1 = kDigits > 1 ? (n + 128) >> 8 : 0;
      if (kDigits > 1) digits1[c] = static_cast<int8_t>(digit1);
      digits0[c] = static_cast<int8_t>(n - 256 * digit1);
      head.q_total[g] += n;
    }
  }
}

// Sums of n * u, of each head and vector.
template <int kHeads, int kVectors>
class DigitSums {
 public:
  HWY_INLINE DigitSums() {
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        for (int digit = 0; digit < kDigits; ++digit) parts_[h][digit][v] = hn::Zero(DI());
        total_[h][v] = hn::Zero(DI());
      }
    }
  }

  // Words of four codes times the digits of each head's quad.
  HWY_INLINE void Add(const VU (&codes)[kVectors], const int32_t* const (&digits)[kHeads][kDigits],
                      int64_t quad) {
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      PAGODA_UNROLL
      for (int digit = 0; digit < kDigits; ++digit) {
        const VI factors = hn::Set(DI(), digits[h][digit][quad]);
        PAGODA_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          VI& part = parts_[h][digit][v];
#if HWY_TARGET == HWY_AVX3
          part.raw = _mm512_dpbusd_epi32(part.raw, codes[v].raw, factors.raw);
#else
          part.raw = _mm256_add_epi16(part.raw, _mm256_maddubs_epi16(codes[v].raw, factors.raw));
#endif
        }
      }
    }
  }

  // After at most four octets: nibbles times bytes make 3840 a pair, eight of which fit 16 bits.
  HWY_INLINE void EndWindow() {
#if HWY_TARGET == HWY_AVX2
    const __m256i ones = _mm256_set1_epi16(1);
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const VI sums{_mm256_madd_epi16(parts_[h][0][v].raw, ones)};
        total_[h][v] = hn::Add(total_[h][v], sums);
        parts_[h][0][v] = hn::Zero(DI());
      }
    }
#endif
  }

  HWY_INLINE VI Total(int h, int v) const {
#if HWY_TARGET == HWY_AVX3
    return hn::Add(hn::ShiftLeft<8>(parts_[h][1][v]), parts_[h][0][v]);
#else
    return total_[h][v];
#endif
  }

 private:
  VI parts_[kHeads][kDigits][kVectors];
  VI total_[kHeads][kVectors];
};

// A word of eight codes becomes two of four.
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

template <int kHeads, bool kBoth>
void KeyIntegers(HeadState* heads, const float (&mean_dot)[kHeads], const CodesOf& k,
                 const RunArgs& run) {
  constexpr int kVectors = kIntegerVectors;
  constexpr int32_t kChunk = kVectors * kLanes;
  constexpr int32_t kTwiceCentre = kBoth ? 255 : 15;
  const DF d;
  const int32_t* digits[kHeads][kDigits];
  for (int h = 0; h < kHeads; ++h) {
    for (int digit = 0; digit < kDigits; ++digit) digits[h][digit] = heads[h].q_digits[digit];
  }
  const int32_t first = run.begin / kChunk * kChunk;
  for (int32_t t = first; t < run.end; t += kChunk) {
    const int64_t tile_words =
        int64_t{t / kTileTokens} * run.head_dim * kTileTokens / kOctet + t % kTileTokens;
    VF logit[kHeads][kVectors];
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) logit[h][v] = hn::Set(d, mean_dot[h]);
    }
    for (int32_t g = 0; g < run.groups.count; ++g) {
      DigitSums<kHeads, kVectors> sums;
      for (int32_t c = run.groups.begin[g]; c < run.groups.begin[g + 1]; c += kOctet) {
        const int64_t at = tile_words + int64_t{c} * (kTileTokens / kOctet);
        VU quad0[kVectors];
        VU quad1[kVectors];
        LoadOctet<kVectors, kBoth>(k.hi + at, kBoth ? k.lo + at : nullptr, quad0, quad1);
        PrefetchLine(k.next_hi + at);
        if (kChunk > 16) PrefetchLine(k.next_hi + at + 16);
        if (kBoth) PrefetchLine(k.next_lo + at);
        if (kBoth && kChunk > 16) PrefetchLine(k.next_lo + at + 16);
        sums.Add(quad0, digits, c / 4);
        sums.Add(quad1, digits, c / 4 + 1);
        if (c / kOctet % 4 == 3) sums.EndWindow();
      }
      sums.EndWindow();
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const VF a = LoadFp16(k.scales + int64_t{g} * run.page_tokens + t + v * kLanes);
        PAGODA_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          const VI centre = hn::Set(DI(), kTwiceCentre * heads[h].q_total[g]);
          const VI twice = hn::Sub(hn::ShiftLeft<1>(sums.Total(h, v)), centre);
          const float half_step = heads[h].q_step[g] * (kBoth ? 0.5f * 0.0625f : 0.5f);
          logit[h][v] =
              hn::MulAdd(hn::Mul(a, hn::Set(d, half_step)), hn::ConvertTo(d, twice), logit[h][v]);
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
    exponents[4 + h] = factors.max[h] - heads[h].max;
  }
  const VF powers = Exp2(hn::Load(d, exponents));
  hn::Store(powers, d, exponents);
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    factors.old[h] = exponents[h];
    factors.tile[h] = exponents[4 + h];
  }
  return factors;
}

// Logits to weights w relative to the tile's own maximum; w * a as digits, one step for each group,
// the largest scale's. What was accumulated before is brought to a new running maximum.
template <int kHeads, bool kBoth>
HWY_INLINE void Weigh(HeadState* heads, const uint16_t* scales, const RunArgs& run) {
  constexpr float kCentre = kBoth ? 127.5f : 7.5f;
  const DF d;
  const hn::Rebind<int8_t, DI> d8;
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
    const VF inverse = hn::Set(d, most > 0 ? kIntegerMax / most : 0.0f);
    const float step = most / kIntegerMax * (kBoth ? 0.0625f : 1.0f);
    VI sum[kHeads];
    VF rest[kHeads];  // what rounding left, carried on in its lane: small weights add up all the
                      // same
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      sum[h] = hn::Zero(DI());
      rest[h] = hn::Zero(d);
    }
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
        const VF exact = hn::MulAdd(weight, unit, rest[h]);
        const VI n = hn::NearestInt(hn::Min(exact, hn::Set(d, kIntegerMax)));
        rest[h] = hn::Sub(exact, hn::ConvertTo(d, n));
        sum[h] = hn::Add(sum[h], n);
        VI digit0 = n;
        if constexpr (kDigits > 1) {
          const VI digit1 = hn::ShiftRight<8>(hn::Add(n, hn::Set(DI(), 128)));
          digit0 = hn::Sub(n, hn::ShiftLeft<8>(digit1));
          auto* bytes1 = reinterpret_cast<int8_t*>(heads[h].p_digits[1][g]) + t;
          hn::Store(hn::DemoteTo(d8, digit1), d8, bytes1);
        }
        auto* bytes0 = reinterpret_cast<int8_t*>(heads[h].p_digits[0][g]) + t;
        hn::Store(hn::DemoteTo(d8, digit0), d8, bytes0);
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
  const int32_t* digits[kHeads][kDigits];
  for (int h = 0; h < kHeads; ++h) {
    for (int digit = 0; digit < kDigits; ++digit)
      digits[h][digit] = heads[h].p_digits[digit][group];
  }
  DigitSums<kHeads, kVectors> sums;
  const int32_t first = run.begin / kOctet * kOctet;
  for (int32_t t = first; t < run.end; t += kOctet) {
    const int64_t at = int64_t{t / kTileTokens} * v_dim * 4 + int64_t{c / 32} * 128 +
                       t % kTileTokens / kOctet * 32 + c % 32;
    VU quad0[kVectors];
    VU quad1[kVectors];
    LoadOctet<kVectors, kBoth>(v.hi + at, kBoth ? v.lo + at : nullptr, quad0, quad1);
    PrefetchLine(v.next_hi + at);
    if (kVectors * kLanes > 16) PrefetchLine(v.next_hi + at + 16);
    if (kBoth) PrefetchLine(v.next_lo + at);
    if (kBoth && kVectors * kLanes > 16) PrefetchLine(v.next_lo + at + 16);
    sums.Add(quad0, digits, t / 4);
    sums.Add(quad1, digits, t / 4 + 1);
    if (t / kOctet % 4 == 3) sums.EndWindow();
  }
  sums.EndWindow();
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    const VF step = hn::Set(d, heads[h].p_step[group]);
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      float* o = heads[h].o_rotated + c + i * kLanes;
      hn::Store(hn::MulAdd(step, hn::ConvertTo(d, sums.Total(h, i)), hn::Load(d, o)), d, o);
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
    // Vectors share their weights unless a group, or a block of 32 channels, ends between them.
    const bool split = g < last && c + kLanes >= run.groups.begin[g + 1];
    if (split || c % 32 + kIntegerVectors * kLanes > 32) {
      ValueIntegerColumns<kHeads, 1, kBoth>(heads, v, run, c, g);
      c += kLanes;
    } else {
      ValueIntegerColumns<kHeads, kIntegerVectors, kBoth>(heads, v, run, c, g);
      c += kIntegerVectors * kLanes;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_POP_ATTRIBUTES

#endif  // PAGODA_INTEGERS_ATTRIBUTES

#endif  // include guard per target
