// A CUDA stream in interfaces that host compilers read. On the emulated device (simt.h) work is
// done when a call returns, and a stream means nothing.
#pragma once

struct CUstream_st;

namespace pagoda::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t

}  // namespace pagoda::kernels::cuda
