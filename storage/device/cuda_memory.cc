#include "storage/device/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/bytes.h"
#include "storage/base/check.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/device/cuda_status.h"

namespace pagoda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryHandle::ipc));

// How a buffer came to be, and so how it goes.
enum class Origin : uint8_t { kMalloc, kMapped, kLegacyImport };

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(std::byte* data, int64_t bytes, int ordinal, Origin origin, const CudaDriver& driver,
             CUmemGenericAllocationHandle handle)
      : DeviceBuffer(data, bytes),
        ordinal_(ordinal),
        origin_(origin),
        driver_(driver),
        handle_(handle) {}
  // Nothing is to be done about errors here: a lost device has freed everything.
  ~CudaBuffer() override {
    (void)cudaSetDevice(ordinal_);
    const auto address = reinterpret_cast<CUdeviceptr>(data());
    const auto size = static_cast<size_t>(bytes());
    switch (origin_) {
      case Origin::kMalloc:
        (void)cudaFree(data());
        break;
      case Origin::kMapped:
        (void)driver_.mem_unmap(address, size);
        (void)driver_.mem_address_free(address, size);
        (void)driver_.mem_release(handle_);
        break;
      case Origin::kLegacyImport:
        (void)cudaIpcCloseMemHandle(data());
        break;
    }
  }
  Origin origin() const { return origin_; }
  CUmemGenericAllocationHandle handle() const { return handle_; }

 private:
  const int ordinal_;
  const Origin origin_;
  const CudaDriver driver_;
  const CUmemGenericAllocationHandle handle_;
};

}  // namespace

CudaMemory::CudaMemory(const CudaDriver& driver, int ordinal, const DeviceUuid& uuid)
    : driver_(driver), ordinal_(ordinal), uuid_(uuid) {
  properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties_.location.id = ordinal;
  properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const absl::Status probed = ProbeDescriptors();
  if (probed.ok()) {
    export_kind_ = MemoryHandle::Kind::kDescriptor;
  } else {
    LogWarning("device_export_legacy",
               {{"device", uuid.ToString()}, {"reason", std::string(probed.message())}});
  }
}

absl::Status CudaMemory::ProbeDescriptors() {
  int supported = 0;
  PAGODA_RETURN_IF_ERROR(FromCudaDriver(
      "cuDeviceGetAttribute",
      driver_.device_get_attribute(
          &supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal_)));
  if (supported == 0) return absl::UnimplementedError("the device has no memory by descriptor");
  size_t granule = 0;
  PAGODA_RETURN_IF_ERROR(
      FromCudaDriver("cuMemGetAllocationGranularity",
                     driver_.mem_get_allocation_granularity(&granule, &properties_,
                                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM)));
  granule_bytes_ = static_cast<int64_t>(granule);
  // Some containers allow the first step and not the second.
  PAGODA_ASSIGN_OR_RETURN(auto buffer, AllocateMapped(granule_bytes_));
  PAGODA_ASSIGN_OR_RETURN(MemoryHandle exported, Export(*buffer));
  PAGODA_ASSIGN_OR_RETURN(auto imported, Import(std::move(exported)));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> CudaMemory::Allocate(int64_t bytes,
                                                                   DeviceSharing sharing) const {
  if (sharing == DeviceSharing::kExportable && export_kind_ == MemoryHandle::Kind::kDescriptor) {
    return AllocateMapped(bytes);
  }
  void* data = nullptr;
  PAGODA_RETURN_IF_ERROR(FromCuda("cudaMalloc", cudaMalloc(&data, static_cast<size_t>(bytes))));
  return std::make_unique<CudaBuffer>(static_cast<std::byte*>(data), bytes, ordinal_,
                                      Origin::kMalloc, driver_, 0);
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> CudaMemory::AllocateMapped(int64_t bytes) const {
  const int64_t size = AlignUp(bytes, granule_bytes_);
  CUmemGenericAllocationHandle handle = 0;
  PAGODA_RETURN_IF_ERROR(FromCudaDriver(
      "cuMemCreate",
      driver_.mem_create(&handle, static_cast<size_t>(size), &properties_, /*flags=*/0)));
  return Map(handle, size);
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> CudaMemory::Map(CUmemGenericAllocationHandle handle,
                                                              int64_t bytes) const {
  const auto size = static_cast<size_t>(bytes);
  CUdeviceptr address = 0;
  absl::Status status = FromCudaDriver(
      "cuMemAddressReserve",
      driver_.mem_address_reserve(&address, size, /*alignment=*/0, /*addr=*/0, /*flags=*/0));
  if (!status.ok()) {
    (void)driver_.mem_release(handle);
    return status;
  }
  status =
      FromCudaDriver("cuMemMap", driver_.mem_map(address, size, /*offset=*/0, handle, /*flags=*/0));
  if (!status.ok()) {
    (void)driver_.mem_address_free(address, size);
    (void)driver_.mem_release(handle);
    return status;
  }
  // From here on the buffer undoes all three.
  auto buffer = std::make_unique<CudaBuffer>(reinterpret_cast<std::byte*>(address), bytes, ordinal_,
                                             Origin::kMapped, driver_, handle);
  const CUmemAccessDesc access = {properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  PAGODA_RETURN_IF_ERROR(
      FromCudaDriver("cuMemSetAccess", driver_.mem_set_access(address, size, &access, 1)));
  return buffer;
}

absl::StatusOr<MemoryHandle> CudaMemory::Export(const DeviceBuffer& buffer) const {
  const auto& memory = static_cast<const CudaBuffer&>(buffer);
  PAGODA_CHECK(memory.origin() != Origin::kLegacyImport);
  MemoryHandle exported;
  exported.uuid = uuid_;
  exported.bytes = buffer.bytes();
  if (memory.origin() == Origin::kMalloc) {
    exported.kind = MemoryHandle::Kind::kLegacyIpc;
    cudaIpcMemHandle_t handle;
    PAGODA_RETURN_IF_ERROR(
        FromCuda("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, buffer.data())));
    std::memcpy(exported.ipc.data(), &handle, sizeof(handle));
    return exported;
  }
  exported.kind = MemoryHandle::Kind::kDescriptor;
  int fd = -1;
  PAGODA_RETURN_IF_ERROR(FromCudaDriver(
      "cuMemExportToShareableHandle",
      driver_.mem_export(&fd, memory.handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                         /*flags=*/0)));
  exported.fd = UniqueFd(fd);
  return exported;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> CudaMemory::Import(MemoryHandle handle) const {
  if (handle.uuid != uuid_) {
    return absl::InvalidArgumentError(absl::StrFormat("cuda: memory of %s, this is %s",
                                                      handle.uuid.ToString(), uuid_.ToString()));
  }
  if (handle.bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat("cuda: a handle of %d bytes", handle.bytes));
  }
  switch (handle.kind) {
    case MemoryHandle::Kind::kDescriptor: {
      CUmemGenericAllocationHandle imported = 0;
      PAGODA_RETURN_IF_ERROR(FromCudaDriver(
          "cuMemImportFromShareableHandle",
          driver_.mem_import(&imported,
                             reinterpret_cast<void*>(static_cast<uintptr_t>(handle.fd.get())),
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
      return Map(imported, handle.bytes);  // fails when it has fewer bytes
    }
    case MemoryHandle::Kind::kLegacyIpc: {
      cudaIpcMemHandle_t legacy;
      std::memcpy(&legacy, handle.ipc.data(), sizeof(legacy));
      void* data = nullptr;
      PAGODA_RETURN_IF_ERROR(
          FromCuda("cudaIpcOpenMemHandle",
                   cudaIpcOpenMemHandle(&data, legacy, cudaIpcMemLazyEnablePeerAccess)));
      return std::make_unique<CudaBuffer>(static_cast<std::byte*>(data), handle.bytes, ordinal_,
                                          Origin::kLegacyImport, driver_, 0);
    }
    case MemoryHandle::Kind::kMemfd:
      break;
  }
  return absl::UnimplementedError("cuda: a handle of memory that is not a GPU's");
}

}  // namespace pagoda
