// What stands for CUDA in a build without its headers.
#include "storage/device/cuda_runtime.h"

namespace pagoda {
namespace {

absl::Status Absent() {
  return absl::UnavailableError("this build has no CUDA; build where its headers are installed");
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListCudaDevices() { return Absent(); }
absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenCudaDevice(const DeviceUuid&) {
  return Absent();
}

}  // namespace pagoda
