#include "storage/device/cuda_driver.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/device/cuda_status.h"

namespace pagoda {
namespace {

// The version whose form of a call is meant: that of the headers, where calls have several.
constexpr unsigned kVersion = 12000;

template <typename Function>
absl::Status Find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  PAGODA_RETURN_IF_ERROR(FromCuda("cudaGetDriverEntryPoint", error));
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    return absl::UnimplementedError(
        absl::StrFormat("cuda: the driver has no %s; install a newer one", name));
  }
  function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CudaDriver> CudaDriver::Load() {
  CudaDriver driver;
  PAGODA_RETURN_IF_ERROR(Find("cuDeviceGetAttribute", driver.device_get_attribute));
  PAGODA_RETURN_IF_ERROR(
      Find("cuMemGetAllocationGranularity", driver.mem_get_allocation_granularity));
  PAGODA_RETURN_IF_ERROR(Find("cuMemCreate", driver.mem_create));
  PAGODA_RETURN_IF_ERROR(Find("cuMemRelease", driver.mem_release));
  PAGODA_RETURN_IF_ERROR(Find("cuMemAddressReserve", driver.mem_address_reserve));
  PAGODA_RETURN_IF_ERROR(Find("cuMemAddressFree", driver.mem_address_free));
  PAGODA_RETURN_IF_ERROR(Find("cuMemMap", driver.mem_map));
  PAGODA_RETURN_IF_ERROR(Find("cuMemUnmap", driver.mem_unmap));
  PAGODA_RETURN_IF_ERROR(Find("cuMemSetAccess", driver.mem_set_access));
  PAGODA_RETURN_IF_ERROR(Find("cuMemExportToShareableHandle", driver.mem_export));
  PAGODA_RETURN_IF_ERROR(Find("cuMemImportFromShareableHandle", driver.mem_import));
  PAGODA_RETURN_IF_ERROR(Find("cuStreamWriteValue64", driver.stream_write_value64));
  PAGODA_RETURN_IF_ERROR(Find("cuStreamWaitValue64", driver.stream_wait_value64));
  return driver;
}

}  // namespace pagoda
