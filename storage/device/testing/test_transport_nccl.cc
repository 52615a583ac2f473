// The NCCL of this machine.
#include "storage/device/nccl_transport.h"
#include "storage/device/testing/test_transport.h"

namespace pagoda {

absl::StatusOr<std::unique_ptr<PeerTransport>> OpenTestTransport(DeviceRuntime& runtime) {
  return OpenNccl(runtime, {});
}

}  // namespace pagoda
