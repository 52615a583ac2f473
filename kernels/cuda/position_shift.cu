// A thread a pair of channels, or a channel that does not turn. Angles are in double: shifts are
// large, and a float of one would lose the turn.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/position_shift_cuda.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) TurnQueriesKernel(TurnQueriesParams p) {
  const int half = p.rope.rope_dims / 2;
  const int items = p.head_dim - half;  // of a row
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= p.row_count * items) return;
  const int64_t row = index / items * p.head_dim;
  const int i = static_cast<int>(index % items);
  if (i >= half) {
    p.turned[row + half + i] = p.q[row + half + i];
    return;
  }
  const double angle = -static_cast<double>(p.shift) / p.rope.linear_factor *
                       pow(p.rope.theta, -2.0 * i / p.rope.rope_dims);
  const auto cosine = static_cast<float>(cos(angle));
  const auto sine = static_cast<float>(sin(angle));
  const float a = p.q[row + i];
  const float b = p.q[row + half + i];
  p.turned[row + i] = a * cosine - b * sine;
  p.turned[row + half + i] = b * cosine + a * sine;
}

}  // namespace

const char* LaunchTurnQueries(const TurnQueriesParams& p, Stream stream) {
  const int64_t count = p.row_count * (p.head_dim - p.rope.rope_dims / 2);
  const dim3 grid(static_cast<unsigned>((count + kThreads - 1) / kThreads));
  PAGODA_LAUNCH((TurnQueriesKernel), grid, kThreads, 0, stream, p);
  return LaunchError();
}

}  // namespace pagoda::kernels::cuda
