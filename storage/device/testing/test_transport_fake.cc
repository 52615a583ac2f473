// The NCCL of fake_nccl.cc, which lies beside the test.
#include <filesystem>

#include "storage/device/nccl_transport.h"
#include "storage/device/testing/test_transport.h"

namespace pagoda {

absl::StatusOr<std::unique_ptr<PeerTransport>> OpenTestTransport(DeviceRuntime& runtime) {
  NcclOptions options;
  options.library =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfake_nccl.so";
  return OpenNccl(runtime, options);
}

}  // namespace pagoda
