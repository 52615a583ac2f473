// GPUs by CUDA, behind the facade. The binary needs no driver to start: without one these calls say
// so. Where the build had no CUDA, they say that.
//
// Threads  any
// Errors   UNAVAILABLE   no driver, no GPU, or a build without CUDA; names the remedy
//          NOT_FOUND     no GPU of this UUID
//          others as in runtime.h
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/device/runtime.h"

namespace pagoda {

absl::StatusOr<std::vector<DeviceInfo>> ListCudaDevices();

// Makes the device's context, which takes 0.3 to 0.6 GB of its memory.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenCudaDevice(const DeviceUuid& uuid);

}  // namespace pagoda
