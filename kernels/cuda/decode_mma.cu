// Decode attention on tensor cores, for each head_dim.
#include "kernels/cuda/decode_mma.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"

namespace pagoda::kernels::cuda {

const char* LaunchDecodeMma(const DecodeParams& p, Stream stream) {
  return ForHeadDim(p.head_dim, [&](auto dim) {
    constexpr int D = decltype(dim)::value;
    const int run_count = (p.group_count + kMmaHeads - 1) / kMmaHeads;
    const dim3 grid(p.split_count, p.kv_head_count * run_count, p.sequence_count);
    PAGODA_LAUNCH((DecodeMmaKernel<D>), grid, kDecodeWarps * kLanes,
                  (sizeof(DecodeShared<D, kMmaHeads, MmaReading<D>>)), stream, p);
    return LaunchError();
  });
}

}  // namespace pagoda::kernels::cuda
