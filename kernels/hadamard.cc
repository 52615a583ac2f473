#include "kernels/hadamard.h"

#include <bit>
#include <cmath>

namespace pagoda::kernels {
namespace {

// Calls f(begin, size) for each block of the transform, the largest first.
template <typename F>
void ForEachBlock(int32_t head_dim, F f) {
  int32_t begin = 0;
  for (int32_t size = kHeadDimMax; size >= kOctet; size /= 2) {
    if ((head_dim & size) == 0) continue;
    f(begin, size);
    begin += size;
  }
}

void TransformBlock(float* x, int32_t size) {
  for (int32_t stride = 1; stride < size; stride *= 2) {
    for (int32_t i = 0; i < size; i += 2 * stride) {
      for (int32_t j = i; j < i + stride; ++j) {
        const float a = x[j];
        const float b = x[j + stride];
        x[j] = a + b;
        x[j + stride] = a - b;
      }
    }
  }
  const float scale = HadamardScale(size);
  for (int32_t i = 0; i < size; ++i) x[i] *= scale;
}

void FlipSigns(float* x, int32_t head_dim) {
  for (int32_t c = 0; c < head_dim; ++c) {
    if (IsFlippedChannel(c)) x[c] = -x[c];
  }
}

// sum over j of (-1)^popcount(i & j) * x[j] / sqrt(size), with x flipped first or the sum after.
void TransformRef(const double* x, double* y, int32_t head_dim, bool forward) {
  ForEachBlock(head_dim, [&](int32_t begin, int32_t size) {
    for (int32_t i = 0; i < size; ++i) {
      double sum = 0;
      for (int32_t j = 0; j < size; ++j) {
        const bool flip_in = forward && IsFlippedChannel(begin + j);
        const bool odd = std::popcount(static_cast<uint32_t>(i & j)) % 2 != 0;
        sum += flip_in != odd ? -x[begin + j] : x[begin + j];
      }
      if (!forward && IsFlippedChannel(begin + i)) sum = -sum;
      y[begin + i] = sum / std::sqrt(static_cast<double>(size));
    }
  });
}

}  // namespace

void RotateForward(float* x, int32_t head_dim) {
  FlipSigns(x, head_dim);
  ForEachBlock(head_dim, [x](int32_t begin, int32_t size) { TransformBlock(x + begin, size); });
}

void RotateBackward(float* y, int32_t head_dim) {
  ForEachBlock(head_dim, [y](int32_t begin, int32_t size) { TransformBlock(y + begin, size); });
  FlipSigns(y, head_dim);
}

void RotateForwardRef(const double* x, double* y, int32_t head_dim) {
  TransformRef(x, y, head_dim, /*forward=*/true);
}

void RotateBackwardRef(const double* y, double* x, int32_t head_dim) {
  TransformRef(y, x, head_dim, /*forward=*/false);
}

}  // namespace pagoda::kernels
