#include "client/worker/elementwise.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "client/worker/elementwise.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pagoda {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Full = hn::ScalableTag<float>;
using One = hn::CappedTag<float, 1>;
constexpr int64_t kBlock = 1024;  // floats summed in float before they go on in double

// Calls body(tag, index) for whole vectors, then for the rest one element at a time.
template <typename Body>
HWY_INLINE void ForEachVector(int64_t count, const Body& body) {
  const Full full;
  const auto lanes = static_cast<int64_t>(hn::Lanes(full));
  int64_t index = 0;
  for (; index + lanes <= count; index += lanes) body(full, index);
  for (; index < count; ++index) body(One(), index);
}

void RmsNorm(const float* x, const float* weight, int64_t count, float epsilon, float* y) {
  const Full full;
  auto sums = hn::Zero(full);
  float rest = 0;
  const auto lanes = static_cast<int64_t>(hn::Lanes(full));
  int64_t index = 0;
  for (; index + lanes <= count; index += lanes) {
    const auto v = hn::LoadU(full, x + index);
    sums = hn::MulAdd(v, v, sums);
  }
  for (; index < count; ++index) rest += x[index] * x[index];
  const float sum = hn::GetLane(hn::SumOfLanes(full, sums)) + rest;
  const float scale = 1 / std::sqrt(sum / static_cast<float>(count) + epsilon);
  ForEachVector(count, [&](auto tag, int64_t i) HWY_ATTR {
    const auto v = hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, scale));
    hn::StoreU(hn::Mul(v, hn::LoadU(tag, weight + i)), tag, y + i);
  });
}

void SiluMultiply(const float* gate, const float* up, int64_t count, float* out) {
  ForEachVector(count, [&](auto tag, int64_t i) HWY_ATTR {
    const auto g = hn::LoadU(tag, gate + i);
    // Highway's exp is wrong, not infinite, where a float overflows.
    const auto e = hn::Exp(tag, hn::Min(hn::Neg(g), hn::Set(tag, 88.0F)));
    const auto divisor = hn::Add(hn::Set(tag, 1.0F), e);
    hn::StoreU(hn::Mul(hn::Div(g, divisor), hn::LoadU(tag, up + i)), tag, out + i);
  });
}

void RotateHalfSplit(const float* cosines, const float* sines, int64_t half_count, float* x) {
  ForEachVector(half_count, [&](auto tag, int64_t i) HWY_ATTR {
    const auto a = hn::LoadU(tag, x + i);
    const auto b = hn::LoadU(tag, x + half_count + i);
    const auto c = hn::LoadU(tag, cosines + i);
    const auto s = hn::LoadU(tag, sines + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), tag, x + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), tag, x + half_count + i);
  });
}

void RoundToBf16(const float* x, int64_t count, uint16_t* target) {
  ForEachVector(count, [&](auto tag, int64_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(tag)> tag_u;
    const hn::RebindToSigned<decltype(tag)> tag_i;
    const hn::Rebind<uint16_t, decltype(tag)> tag_16;
    const auto value = hn::LoadU(tag, x + i);
    const auto bits = hn::BitCast(tag_u, value);
    const auto top = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(top, hn::Set(tag_u, 1));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(tag_u, uint32_t{0x7fff}))));
    const auto quiet = hn::Or(top, hn::Set(tag_u, uint32_t{0x40}));
    const auto is_nan = hn::RebindMask(tag_u, hn::IsNaN(value));
    const auto chosen = hn::IfThenElse(is_nan, quiet, rounded);
    hn::StoreU(hn::DemoteTo(tag_16, hn::BitCast(tag_i, chosen)), tag_16, target + i);
  });
}

double LogSumExp(const float* x, int64_t count) {
  const Full full;
  auto greatest = hn::Set(full, x[0]);
  ForEachVector(count, [&](auto tag, int64_t i) HWY_ATTR {
    if constexpr (std::is_same_v<decltype(tag), Full>) {
      greatest = hn::Max(greatest, hn::LoadU(tag, x + i));
    } else {
      greatest = hn::Max(greatest, hn::Set(full, x[i]));
    }
  });
  const float max = hn::GetLane(hn::MaxOfLanes(full, greatest));
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    auto sums = hn::Zero(full);
    float rest = 0;
    ForEachVector(std::min(kBlock, count - begin), [&](auto tag, int64_t i) HWY_ATTR {
      const auto v = hn::Exp(tag, hn::Sub(hn::LoadU(tag, x + begin + i), hn::Set(tag, max)));
      if constexpr (std::is_same_v<decltype(tag), Full>) {
        sums = hn::Add(sums, v);
      } else {
        rest += hn::GetLane(v);
      }
    });
    total += hn::GetLane(hn::SumOfLanes(full, sums)) + rest;
  }
  return max + std::log(total);
}

double KlDivergence(const float* reference, double reference_lse, const float* x, double lse,
                    int64_t count) {
  const Full full;
  const auto reference_shift = static_cast<float>(reference_lse);
  const auto shift = static_cast<float>(lse - reference_lse);
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    auto sums = hn::Zero(full);
    float rest = 0;
    ForEachVector(std::min(kBlock, count - begin), [&](auto tag, int64_t i) HWY_ATTR {
      const auto r = hn::LoadU(tag, reference + begin + i);
      const auto difference = hn::Sub(hn::LoadU(tag, x + begin + i), r);
      // exp overflows from 88 on; a logit that far off has said enough.
      const auto d = hn::Min(hn::Sub(difference, hn::Set(tag, shift)), hn::Set(tag, 80.0F));
      const auto p = hn::Exp(tag, hn::Sub(r, hn::Set(tag, reference_shift)));
      const auto term = hn::Mul(p, hn::Sub(hn::Expm1(tag, d), d));
      if constexpr (std::is_same_v<decltype(tag), Full>) {
        sums = hn::Add(sums, term);
      } else {
        rest += hn::GetLane(term);
      }
    });
    total += hn::GetLane(hn::SumOfLanes(full, sums)) + rest;
  }
  return total;
}

const char* SimdTargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace pagoda
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagoda {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(SiluMultiply);
HWY_EXPORT(RotateHalfSplit);
HWY_EXPORT(RoundToBf16);
HWY_EXPORT(LogSumExp);
HWY_EXPORT(KlDivergence);
HWY_EXPORT(SimdTargetName);

void RmsNorm(const float* x, const float* weight, int64_t count, float epsilon, float* y) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, count, epsilon, y);
}
void SiluMultiply(const float* gate, const float* up, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(SiluMultiply)(gate, up, count, out);
}
void RotateHalfSplit(const float* cosines, const float* sines, int64_t half_count, float* x) {
  HWY_DYNAMIC_DISPATCH(RotateHalfSplit)(cosines, sines, half_count, x);
}
void RoundToBf16(const float* x, int64_t count, uint16_t* target) {
  HWY_DYNAMIC_DISPATCH(RoundToBf16)(x, count, target);
}
double LogSumExp(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(LogSumExp)(x, count);
}
double KlDivergence(const float* reference, double reference_lse, const float* x, double lse,
                    int64_t count) {
  return HWY_DYNAMIC_DISPATCH(KlDivergence)(reference, reference_lse, x, lse, count);
}

const char* SimdTargetName() { return HWY_DYNAMIC_DISPATCH(SimdTargetName)(); }

}  // namespace pagoda
#endif  // HWY_ONCE
