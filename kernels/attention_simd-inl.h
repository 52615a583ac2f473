// Vector pieces that both attention paths share. Included once per target, by Highway's rules.
//
// Vectors have at most 16 lanes of float, so that a 16-channel run of one scale group is never
// split.
#if defined(PAGODA_KERNELS_ATTENTION_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PAGODA_KERNELS_ATTENTION_SIMD_INL_H
#undef PAGODA_KERNELS_ATTENTION_SIMD_INL_H
#else
#define PAGODA_KERNELS_ATTENTION_SIMD_INL_H
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/float16.h"
#include "kernels/page_layout.h"

// Register blocking holds only if these loops vanish; both compilers need to be told. (Where every
// access is checked as well, a compiler would need twenty minutes for it.)
#undef PAGODA_UNROLL
#if defined(PAGODA_NO_UNROLL)
#define PAGODA_UNROLL
#elif defined(__clang__)
#define PAGODA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PAGODA_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::Rebind<int32_t, DF>;
using DU = hn::Rebind<uint32_t, DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
constexpr int32_t kLanes = static_cast<int32_t>(HWY_MIN(HWY_LANES(float), 16));

// Targets with 32 vector registers hold larger blocks.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
constexpr bool kManyRegisters = true;
#else
constexpr bool kManyRegisters = false;
#endif

// The running maximum before the first token: finite, so that differences are numbers.
constexpr float kNoMax = -3.0e38f;

// 2^x for x <= 100: relative error below 2^-21; exactly 0 below -126.
//   f in [-1/2, 1/2]: the Taylor series to f^6 leaves (ln2/2)^7 / 7! = 2^-23, its sums 2^-22.
HWY_INLINE VF Exp2(VF x) {
  const DF d;
  const DI di;
  const VF clamped = hn::Max(x, hn::Set(d, -127.0f));
  const VF n = hn::Round(clamped);
  const VF f = hn::Sub(clamped, n);
  VF p = hn::Set(d, 1.5403530e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.3333558e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.6181291e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5504109e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022651e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314718e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -126.0f)), hn::Mul(p, power));
}

HWY_INLINE float Exp2One(float x) { return hn::GetLane(Exp2(hn::Set(DF(), x))); }

// Into L2: into L1 was slower, its miss buffers are few.
HWY_INLINE void PrefetchLine(const void* address) { __builtin_prefetch(address, 0, 2); }

// Horizontal, in one fixed order: halves folded onto each other.
HWY_INLINE float MaxOfLanes(VF x) { return hn::GetLane(hn::MaxOfLanes(DF(), x)); }
HWY_INLINE float SumOfLanes(VF x) { return hn::GetLane(hn::SumOfLanes(DF(), x)); }

// kLanes fp16 words as floats, exact.
HWY_INLINE VF LoadFp16(const uint16_t* words) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || \
    HWY_TARGET == HWY_NEON
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(words)));
#else
  HWY_ALIGN float values[kLanes];
  for (int32_t i = 0; i < kLanes; ++i) values[i] = FloatFromFp16(words[i]);
  return hn::Load(DF(), values);
#endif
}

// Eight elements, one a byte: elements 0 to 3 of the words, then 4 to 7.
struct ElementBytes {
  VU first;
  VU second;
};

// Nibbles of one plane, 0 to 15.
HWY_INLINE ElementBytes SplitWords(VU hi) {
  const VU low = hn::Set(DU(), 0x0f0f0f0f);
  return {hn::And(hi, low), hn::And(hn::ShiftRight<4>(hi), low)};
}

// Words of hi and lo as 8-bit codes.
HWY_INLINE ElementBytes MergeWords(VU hi, VU lo) {
  const DU d;
  const VU low = hn::Set(d, 0x0f0f0f0f);
  const VU high = hn::Set(d, 0xf0f0f0f0);
  return {hn::Or(hn::And(lo, low), hn::And(hn::ShiftLeft<4>(hi), high)),
          hn::Or(hn::And(hn::ShiftRight<4>(lo), low), hn::And(hi, high))};
}

// Byte i % 4 of each lane, widened: one shuffle where the target has it.
HWY_INLINE VF ElementOf(const ElementBytes& bytes, int i) {
  const VU words = i < 4 ? bytes.first : bytes.second;
#if HWY_TARGET == HWY_SCALAR
  const VU element = hn::And(hn::ShiftRightSame(words, i % 4 * 8), hn::Set(DU(), 255));
#else
  static constexpr uint8_t kZero = 0x80;
  alignas(16) static constexpr uint8_t kTake[4][16] = {
      {0, kZero, kZero, kZero, 4, kZero, kZero, kZero, 8, kZero, kZero, kZero, 12, kZero, kZero,
       kZero},
      {1, kZero, kZero, kZero, 5, kZero, kZero, kZero, 9, kZero, kZero, kZero, 13, kZero, kZero,
       kZero},
      {2, kZero, kZero, kZero, 6, kZero, kZero, kZero, 10, kZero, kZero, kZero, 14, kZero, kZero,
       kZero},
      {3, kZero, kZero, kZero, 7, kZero, kZero, kZero, 11, kZero, kZero, kZero, 15, kZero, kZero,
       kZero}};
  const hn::Repartition<uint8_t, DU> d8;
  const auto take = hn::LoadDup128(d8, kTake[i % 4]);
  const VU element = hn::BitCast(DU(), hn::TableLookupBytesOr0(hn::BitCast(d8, words), take));
#endif
  return hn::ConvertTo(DF(), hn::BitCast(DI(), element));
}

// The eight elements of a word of hi (and of lo): `words` yields element i as a float.
template <bool kBoth>
struct OctetWords {
  HWY_INLINE OctetWords(VU hi, VU lo)
#if HWY_TARGET == HWY_AVX3
      : bytes(kBoth ? MergeWords(hi, lo) : ElementBytes{hi, hi}){}
#else
      : bytes(kBoth ? MergeWords(hi, lo) : SplitWords(hi)) {
  }
#endif
        HWY_INLINE VF
        operator[](int i) const {
#if HWY_TARGET == HWY_AVX3
    // vpermps looks at four bits of each lane: a table of 0 to 15 needs neither mask nor
    // conversion. Highway's TableLookupLanes has the instruction, but in debug builds refuses the
    // other bits.
    if constexpr (!kBoth) {
      const VU shifted = hn::ShiftRightSame(bytes.first, i % 4 * 8 + i / 4 * 4);
      return VF{_mm512_permutexvar_ps(shifted.raw, hn::Iota(DF(), 0).raw)};
    }
#endif
    return ElementOf(bytes, i);
  }
  ElementBytes bytes;
};

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
