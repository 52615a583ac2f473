// What connects two test devices: sockets on the host, NCCL between GPUs. Decided by what is
// linked, as the devices are (test_device.h).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "storage/device/peer_transport.h"

namespace pagoda {

absl::StatusOr<std::unique_ptr<PeerTransport>> OpenTestTransport(DeviceRuntime& runtime);

}  // namespace pagoda
