// What every op does around its launch.
#pragma once

#include <type_traits>

#include "kernels/cuda/simt.h"

namespace pagoda::kernels::cuda {

// Whether the last launch was accepted: null, or CUDA's words.
inline const char* LaunchError() {
#if defined(__CUDACC__)
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
#else
  return nullptr;  // simt.h aborts on a bad launch
#endif
}

// `launch(std::integral_constant<int, D>)` for the head sizes that kernels are built for.
template <typename Launch>
const char* ForHeadDim(int head_dim, const Launch& launch) {
  switch (head_dim) {
    case 64:
      return launch(std::integral_constant<int, 64>());
    case 80:
      return launch(std::integral_constant<int, 80>());
    case 96:
      return launch(std::integral_constant<int, 96>());
    case 128:
      return launch(std::integral_constant<int, 128>());
    case 256:
      return launch(std::integral_constant<int, 256>());
    default:
      return "no kernel for this head_dim";
  }
}

}  // namespace pagoda::kernels::cuda
