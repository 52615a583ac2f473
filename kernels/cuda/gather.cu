// A row of blocks for each piece; a thread moves 16 bytes at a time.
#include "kernels/cuda/gather_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBytesOfBlock = 32 << 10;

__global__ void __launch_bounds__(kThreads) GatherKernel(GatherParams p) {
  const CopyPiece piece = p.pieces[blockIdx.y];
  const uint4* source = static_cast<const uint4*>(piece.source);
  uint4* target = static_cast<uint4*>(piece.target);
  const int64_t count = piece.bytes / static_cast<int64_t>(sizeof(uint4));
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    target[i] = source[i];
  }
}

}  // namespace

const char* LaunchGather(const GatherParams& p, Stream stream) {
  const auto blocks = static_cast<unsigned>((p.bytes_max + kBytesOfBlock - 1) / kBytesOfBlock);
  const dim3 grid(blocks, p.piece_count);
  PAGODA_LAUNCH((GatherKernel), grid, kThreads, 0, stream, p);
  return LaunchError();
}

}  // namespace pagoda::kernels::cuda
