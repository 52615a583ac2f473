// The calls of libcuda.so that the CUDA runtime has no words for. They are looked up when a device
// is opened, so that one binary starts with and without a driver.
#pragma once

#include <cuda.h>

#include "absl/status/statusor.h"

namespace pagoda {

struct CudaDriver {
  decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::cuMemGetAllocationGranularity) mem_get_allocation_granularity = nullptr;
  decltype(&::cuMemCreate) mem_create = nullptr;
  decltype(&::cuMemRelease) mem_release = nullptr;
  decltype(&::cuMemAddressReserve) mem_address_reserve = nullptr;
  decltype(&::cuMemAddressFree) mem_address_free = nullptr;
  decltype(&::cuMemMap) mem_map = nullptr;
  decltype(&::cuMemUnmap) mem_unmap = nullptr;
  decltype(&::cuMemSetAccess) mem_set_access = nullptr;
  decltype(&::cuMemExportToShareableHandle) mem_export = nullptr;
  decltype(&::cuMemImportFromShareableHandle) mem_import = nullptr;
  decltype(&::cuStreamWriteValue64) stream_write_value64 = nullptr;
  decltype(&::cuStreamWaitValue64) stream_wait_value64 = nullptr;

  // UNAVAILABLE: no driver. UNIMPLEMENTED: an older one, which lacks a call.
  static absl::StatusOr<CudaDriver> Load();
};

}  // namespace pagoda
