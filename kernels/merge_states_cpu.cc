#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/merge_states.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/merge_states_cpu.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// a = wa * a + wb * b
void WeighRows(float* a, const float* b, float wa, float wb, int32_t head_dim) {
  const hn::ScalableTag<float> d;
  const auto va = hn::Set(d, wa);
  const auto vb = hn::Set(d, wb);
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  int32_t c = 0;
  for (; c + lanes <= head_dim; c += lanes) {
    const auto sum = hn::MulAdd(va, hn::LoadU(d, a + c), hn::Mul(vb, hn::LoadU(d, b + c)));
    hn::StoreU(sum, d, a + c);
  }
  for (; c < head_dim; ++c) a[c] = wa * a[c] + wb * b[c];
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagoda::kernels {

HWY_EXPORT(WeighRows);

void MergeStatesCpu(AttentionState target, AttentionState source, int64_t row_count,
                    int32_t head_dim) {
  const auto weigh = HWY_DYNAMIC_DISPATCH(WeighRows);
  for (int64_t row = 0; row < row_count; ++row) {
    float* a = target.o + row * head_dim;
    const float* b = source.o + row * head_dim;
    const float la = target.lse2[row];
    const float lb = source.lse2[row];
    if (lb == -std::numeric_limits<float>::infinity()) continue;
    if (la == -std::numeric_limits<float>::infinity()) {
      std::copy_n(b, head_dim, a);
      target.lse2[row] = lb;
      continue;
    }
    const float m = std::max(la, lb);
    const float ea = std::exp2(la - m);
    const float eb = std::exp2(lb - m);
    const float sum = ea + eb;
    weigh(a, b, ea / sum, eb / sum, head_dim);
    target.lse2[row] = m + std::log2(sum);
  }
}

}  // namespace pagoda::kernels
#endif  // HWY_ONCE
