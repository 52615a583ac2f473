#include "absl/strings/str_format.h"
#include "storage/device/nccl_transport.h"

namespace pagoda {

absl::Status NcclOptions::Validate() const {
  if (!library.empty() && channels_max >= 1 && channels_max <= 32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "nccl: library '%s', channels_max %d; a name and 1 to 32 channels are accepted", library,
      channels_max));
}

}  // namespace pagoda
