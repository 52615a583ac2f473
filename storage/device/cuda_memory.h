// Device memory of CUDA that other processes can map: the driver's memory by descriptor, or
// cudaMalloc and its legacy handle where a GPU or container cannot do that.
//
// Units      bytes; memory by descriptor comes in multiples of the driver's granule (2 MiB)
// Threads    any; the device must be the current one of the calling thread
// Errors     as in runtime.h
#pragma once

#include <memory>

#include "storage/device/cuda_driver.h"
#include "storage/device/runtime.h"

namespace pagoda {

class CudaMemory {
 public:
  // Finds out what this device and its driver can export, by doing it.
  CudaMemory(const CudaDriver& driver, int ordinal, const DeviceUuid& uuid);

  MemoryHandle::Kind export_kind() const { return export_kind_; }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t bytes,
                                                         DeviceSharing sharing) const;
  absl::StatusOr<MemoryHandle> Export(const DeviceBuffer& buffer) const;
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Import(MemoryHandle handle) const;

 private:
  absl::Status ProbeDescriptors();
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> AllocateMapped(int64_t bytes) const;
  // Takes the handle's reference, also when it fails.
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Map(CUmemGenericAllocationHandle handle,
                                                    int64_t bytes) const;

  const CudaDriver driver_;
  const int ordinal_;
  const DeviceUuid uuid_;
  CUmemAllocationProp properties_ = {};
  int64_t granule_bytes_ = 0;
  MemoryHandle::Kind export_kind_ = MemoryHandle::Kind::kLegacyIpc;
};

}  // namespace pagoda
