// What stands for NCCL in a build without its header.
#include "storage/base/status_macros.h"
#include "storage/device/nccl_transport.h"

namespace pagoda {
namespace {

absl::Status Absent(const NcclOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  return absl::UnavailableError("this build has no NCCL; build where nccl.h is installed");
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerTransport>> OpenNccl(DeviceRuntime&,
                                                        const NcclOptions& options) {
  return Absent(options);
}
absl::StatusOr<int> NcclVersion(const NcclOptions& options) { return Absent(options); }

}  // namespace pagoda
