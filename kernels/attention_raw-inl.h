// Decode over raw16 rows: a 32-bit word is two channels, so q and o are kept in (even, odd) order.
// Included once per target, by Highway's rules.
#if defined(PAGODA_KERNELS_ATTENTION_RAW_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PAGODA_KERNELS_ATTENTION_RAW_INL_H
#undef PAGODA_KERNELS_ATTENTION_RAW_INL_H
#else
#define PAGODA_KERNELS_ATTENTION_RAW_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/attention_simd-inl.h"
#include "kernels/decode_state.h"

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {

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

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
