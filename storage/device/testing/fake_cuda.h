// CUDA's calls on the host, in place of the library: what of cuda_runtime.cc and its neighbours
// needs no GPU runs against them on every machine, and every call can fail.
//
// Two devices of host memory. Streams are queues, run whenever a call is made; memory by descriptor
// is a memfd, and so is that of cudaMalloc, so that both kinds of handles work between processes.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

// What a stream's handle points to.
struct CUstream_st {
  std::deque<std::function<bool()>> queue;  // a work returns false while it has to wait
};

namespace pagoda {

// The call after `skipped` calls of this name fails. A sticky error (cuda_status.h) is what all
// calls return from then on, as with CUDA.
void FailFakeCuda(const std::string& call, cudaError_t error, int skipped = 0);
// Forgets faults and sticky errors.
void ResetFakeCuda();
// Without memory by descriptor, as some containers are.
void SetFakeCudaDescriptors(bool supported);
// Allocations, registrations, streams and events that nobody has given back.
int FakeCudaObjectCount();
// The names of all calls made so far, each once.
std::vector<std::string> FakeCudaCalls();

}  // namespace pagoda
