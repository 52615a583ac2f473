// Whether the last launch was accepted: null, or CUDA's words.
#pragma once

#include "kernels/cuda/simt.h"

namespace pagoda::kernels::cuda {

inline const char* LaunchError() {
#if defined(__CUDACC__)
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
#else
  return nullptr;  // simt.h aborts on a bad launch
#endif
}

}  // namespace pagoda::kernels::cuda
