// Two ranks by NCCL, which is loaded when it is asked for (libnccl.so.2): a machine without it, and
// a build without its header, say so. The communicator is made without blocking and is aborted,
// never destroyed, whatever ends it: a peer that died in the middle would hold a destroy for ever.
//
// Threads    one at a time
// Errors     UNAVAILABLE    no library, none in this build, or the peer or device is gone
//            UNIMPLEMENTED  an older library than this was built for; names both versions
//            INTERNAL       another error of NCCL; NCCL_DEBUG=WARN shows more
// Cost       some 50 MB of device memory for 8 channels of a connection, less for fewer
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/device/peer_transport.h"

namespace pagoda {

struct NcclOptions {
  std::string library = "libnccl.so.2";
  int channels_max = 4;  // each takes a multiprocessor of the engine's while bytes move; 1 to 32
  absl::Status Validate() const;
};

// `runtime` is a CUDA device, and outlives the transport.
absl::StatusOr<std::unique_ptr<PeerTransport>> OpenNccl(DeviceRuntime& runtime,
                                                        const NcclOptions& options);

// The library's version, e.g. 22809. For a report at start.
absl::StatusOr<int> NcclVersion(const NcclOptions& options);

}  // namespace pagoda
