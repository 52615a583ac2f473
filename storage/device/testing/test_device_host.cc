// The host as two devices.
#include "storage/device/host_runtime.h"
#include "storage/device/host_transport.h"
#include "storage/device/testing/test_device.h"
#include "storage/device/testing/test_transport.h"

namespace pagoda {

int TestDeviceCount() { return 2; }

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenTestDevice(int index) {
  HostRuntimeOptions options;
  options.uuid.bytes[15] = static_cast<uint8_t>(index);
  return std::make_unique<HostRuntime>(options);
}

absl::StatusOr<std::unique_ptr<PeerTransport>> OpenTestTransport(DeviceRuntime& runtime) {
  return std::make_unique<HostTransport>(runtime);
}

}  // namespace pagoda
