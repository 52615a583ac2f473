#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/merge_states.h"

namespace pagoda::kernels {

void MergeStatesRef(AttentionState target, AttentionState source, int64_t row_count,
                    int32_t head_dim) {
  for (int64_t row = 0; row < row_count; ++row) {
    float* a = target.o + row * head_dim;
    const float* b = source.o + row * head_dim;
    const double la = target.lse2[row];
    const double lb = source.lse2[row];
    const double m = std::max(la, lb);
    if (m == -std::numeric_limits<double>::infinity()) continue;  // both empty
    const double wa = std::exp2(la - m);
    const double wb = std::exp2(lb - m);
    for (int32_t c = 0; c < head_dim; ++c) {
      a[c] = static_cast<float>((wa * a[c] + wb * b[c]) / (wa + wb));
    }
    target.lse2[row] = static_cast<float>(m + std::log2(wa + wb));
  }
}

}  // namespace pagoda::kernels
