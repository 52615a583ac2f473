// Which instance of the decode kernel serves a shape. Query heads beyond 8 go to further blocks.
#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.h"

namespace pagoda::kernels::cuda {
namespace {

template <int D, int H>
const char* Launch(const DecodeParams& p, Stream stream) {
  const dim3 grid(p.split_count, p.kv_head_count * ((p.group_count + H - 1) / H), p.sequence_count);
  PAGODA_LAUNCH((DecodeKernel<D, H>), grid, kDecodeWarps * kLanes,
                (sizeof(DecodeShared<D, H, DecodeReading<D, H>>)), stream, p);
  return LaunchError();
}

template <int D>
const char* LaunchOfDim(const DecodeParams& p, Stream stream) {
  if (p.group_count == 1) return Launch<D, 1>(p, stream);
  if (p.group_count <= 4) return Launch<D, 4>(p, stream);
  return Launch<D, 8>(p, stream);
}

}  // namespace

const char* LaunchDecode(const DecodeParams& p, Stream stream) {
  return ForHeadDim(p.head_dim, [&](auto dim) { return LaunchOfDim<dim.value>(p, stream); });
}

}  // namespace pagoda::kernels::cuda
