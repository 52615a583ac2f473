// Errors of CUDA, of its runtime and its driver, as statuses: name, CUDA's words and, where there
// is one, the remedy.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pagoda {

// OK for success. The codes are those of runtime.h.
absl::Status FromCuda(absl::string_view call, cudaError_t error);
// The driver's numbers are the runtime's wherever both know an error.
absl::Status FromCudaDriver(absl::string_view call, CUresult result);

// After such an error every call of the process on this device fails: its work has ended, and only
// another process can use the device.
bool IsSticky(cudaError_t error);

}  // namespace pagoda
