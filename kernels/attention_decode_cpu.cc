// Decode: one query position, all heads of its group. Every tile is read once, in place: codes and
// bf16 rows become floats in registers, shared by up to four heads (codes: eight, where there are
// 32 registers). Lanes are tokens for K codes and channels for V codes, so that neither needs a
// horizontal sum (page_layout.h).
//
//   logit_t = q~.mu + sum_g a_tg (q~_g . u_t - centre * sum q~_g)
//   o~      = sum_t p_t a_tg (u_t - centre)
//
// with u the stored code, centre 7.5 (hi) or 127.5 (hi + lo), q~ and o~ in the rotated frame; raw16
// rows use the plain q and an o of their own, with channels in (even, odd) order. Heads that do not
// fit the registers take a second pass over the tile, which is then in cache. While one tile is
// computed, the next is prefetched at the same offsets.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention_kernels.h"
#include "kernels/decode_state.h"
#include "kernels/hadamard.h"
#include "kernels/simd_targets.h"
#include "kernels/token_run.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_decode_cpu.cc"
#include "hwy/foreach_target.h"
//
#include "kernels/attention_codes-inl.h"
#include "kernels/attention_integers-inl.h"
#include "kernels/attention_raw-inl.h"
#include "kernels/attention_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {

bool HasIntegerDots() {
#if HWY_TARGET == HWY_AVX2
  return true;
#elif HWY_TARGET == HWY_AVX3
  static const bool has = __builtin_cpu_supports("avx512vnni") != 0;
  return has;
#else
  return false;
#endif
}

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
    Rescale(head, Exp2One(head.max - new_max), head_dim);
    head.max = new_max;
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

#ifdef PAGODA_INTEGERS_ATTRIBUTES
template <int kHeads, bool kBothKeys, bool kBothValues>
void IntegerPassOf(HeadState* heads, const PageTile& tile, const CodesOf& k, const CodesOf& v,
                   const RunArgs& run) {
  float mean_dot[kHeads];
  for (int h = 0; h < kHeads; ++h) mean_dot[h] = DotMean(heads[h], tile.k_hi_params, run.head_dim);
  KeyIntegers<kHeads, kBothKeys>(heads, mean_dot, k, run);
  ValueIntegers<kHeads, kBothValues>(heads, v, run);
}

template <int kHeads>
void IntegerPass(HeadState* heads, const PageTile& tile, const CodesOf& k, const CodesOf& v,
                 const RunArgs& run) {
  if constexpr (kIntegersTakeBoth) {
    if (k.lo != nullptr && v.lo != nullptr) {
      return IntegerPassOf<kHeads, true, true>(heads, tile, k, v, run);
    }
    if (k.lo != nullptr) return IntegerPassOf<kHeads, true, false>(heads, tile, k, v, run);
    if (v.lo != nullptr) return IntegerPassOf<kHeads, false, true>(heads, tile, k, v, run);
  }
  IntegerPassOf<kHeads, false, false>(heads, tile, k, v, run);
}
#endif

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

void PrefetchWords(const uint16_t* words, int64_t count) {
  for (int64_t i = 0; words != nullptr && i < count; i += 32) PrefetchLine(words + i);
}

// What the inner loops of the next tile read beside its codes. In other pages than these, in no
// order that the processor could guess.
void PrefetchParams(const PageTile& next, const RunArgs& run) {
  const int64_t mean_words = MeanWords(run.head_dim);
  const int64_t scale_words = int64_t{run.groups.count} * run.page_tokens;
  PrefetchWords(next.k_hi_params, mean_words + (next.k_lo == nullptr ? scale_words : 0));
  PrefetchWords(next.v_lo == nullptr ? next.v_hi_params : next.v_lo_params, scale_words);
  PrefetchWords(next.k_lo_params, scale_words);
}

void AttendCodes(HeadState* heads, int32_t head_count, const PageTile& tile, const PageTile& next,
                 const RunArgs& run) {
  PrefetchParams(next, run);
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
#ifdef PAGODA_INTEGERS_ATTRIBUTES
    if (run.integers && (kIntegersTakeBoth || (k.lo == nullptr && v.lo == nullptr))) {
      const int32_t some = std::min(head_count, kHeadsMax);
      if (some == 4) IntegerPass<4>(heads, tile, k, v, run);
      if (some == 3) IntegerPass<3>(heads, tile, k, v, run);
      if (some == 2) IntegerPass<2>(heads, tile, k, v, run);
      if (some == 1) IntegerPass<1>(heads, tile, k, v, run);
      heads += some;
      head_count -= some;
      continue;
    }
#endif
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
  // Weights need no start value: what a step reads, it has written or masks.
  for (float* channels : {head.q_rotated, head.o_rotated}) std::fill_n(channels, kHeadDimMax, 0.0f);
  for (float* half : {head.o_even, head.o_odd}) std::fill_n(half, kHeadDimMax / 2, 0.0f);
  std::fill_n(head.q_sum, ChannelGroups::kCountMax, 0.0f);
  std::fill_n(head.bias, ChannelGroups::kCountMax, 0.0f);
  std::fill_n(head.sum_lanes, 16, 0.0f);
  std::fill_n(head.bias_lanes[0], ChannelGroups::kCountMax * 16, 0.0f);
  head.max = kNoMax;
  head.sum = 0;
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
#ifdef PAGODA_INTEGERS_ATTRIBUTES
  if (run.integers) QueryDigits(run, head);
#endif
}

void FinishHead(HeadState& head, const RunArgs& run, float* out, float* lse2) {
  for (int32_t i = 0; i < 16; ++i) head.sum += head.sum_lanes[i];
  for (int32_t g = 0; g < run.groups.count; ++g) {
    for (int32_t i = 0; i < 16; ++i) head.bias[g] += head.bias_lanes[g][i];
  }
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
  run.integers = !a.float_codes && HasIntegerDots();
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
