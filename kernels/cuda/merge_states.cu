// n-ary merge by log-sum-exp: a warp a row, a lane every 32nd channel.
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kRowsOfBlock = 4;

__global__ void __launch_bounds__(kRowsOfBlock* kLanes) MergeKernel(MergeParams p) {
  const int lane = threadIdx.x % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kLanes;
  if (row >= p.row_count) return;
  float greatest = -INFINITY;
  for (int i = lane; i < p.part_count; i += kLanes) {
    greatest = fmaxf(greatest, p.part_lse2[i * p.row_count + row]);
  }
  greatest = MaxOfLanes(greatest);
  float sum = 0;
  for (int i = 0; i < p.part_count; ++i) {
    const float lse2 = p.part_lse2[i * p.row_count + row];
    if (lse2 == -INFINITY) continue;
    sum += exp2f(lse2 - greatest);
  }
  for (int c = lane; c < p.head_dim; c += kLanes) {
    float o = 0;
    for (int i = 0; i < p.part_count; ++i) {
      const float lse2 = p.part_lse2[i * p.row_count + row];
      if (lse2 == -INFINITY) continue;
      o += exp2f(lse2 - greatest) * p.part_o[(i * p.row_count + row) * p.head_dim + c];
    }
    p.o[row * p.head_dim + c] = sum == 0.0f ? 0.0f : o / sum;
  }
  __syncwarp();  // lse2 may be that of part 0, which other lanes have then read
  if (lane == 0) p.lse2[row] = sum == 0.0f ? -INFINITY : greatest + log2f(sum);
}

}  // namespace

const char* LaunchMerge(const MergeParams& p, Stream stream) {
  const auto blocks = static_cast<unsigned>((p.row_count + kRowsOfBlock - 1) / kRowsOfBlock);
  PAGODA_LAUNCH((MergeKernel), blocks, kRowsOfBlock * kLanes, 0, stream, p);
  return LaunchError();
}

}  // namespace pagoda::kernels::cuda
