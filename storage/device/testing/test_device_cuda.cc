// The GPUs that this process sees.
#include "storage/device/cuda_runtime.h"
#include "storage/device/testing/test_device.h"

namespace pagoda {

int TestDeviceCount() {
  const auto devices = ListCudaDevices();
  return devices.ok() ? static_cast<int>(devices->size()) : 0;
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenTestDevice(int index) {
  const auto devices = ListCudaDevices();
  if (!devices.ok()) return devices.status();
  return OpenCudaDevice((*devices)[static_cast<size_t>(index)].uuid);
}

}  // namespace pagoda
