#include "storage/device/testing/fake_cuda.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/check.h"
#include "storage/device/cuda_status.h"

// What an event's handle points to.
struct CUevent_st {
  int recorded = 0;
  int done = 0;
};

namespace pagoda {
namespace {

constexpr size_t kMemoryBytes = size_t{1} << 30;
constexpr size_t kGranule = size_t{2} << 20;

struct Memory {
  int fd = -1;
  size_t bytes = 0;
};
struct Fault {
  cudaError_t error;
  int skipped;
};

struct Fake {
  absl::Mutex mutex;
  std::map<std::string, Fault> faults ABSL_GUARDED_BY(mutex);
  std::set<std::string> calls ABSL_GUARDED_BY(mutex);
  cudaError_t sticky ABSL_GUARDED_BY(mutex) = cudaSuccess;
  bool descriptors ABSL_GUARDED_BY(mutex) = true;
  std::set<cudaStream_t> streams ABSL_GUARDED_BY(mutex);
  std::set<cudaEvent_t> events ABSL_GUARDED_BY(mutex);
  std::map<char*, Memory> allocations ABSL_GUARDED_BY(mutex);  // of cudaMalloc, or legacy imports
  std::map<char*, size_t> registered ABSL_GUARDED_BY(mutex);
  std::map<CUmemGenericAllocationHandle, Memory> handles ABSL_GUARDED_BY(mutex);
  CUmemGenericAllocationHandle next_handle ABSL_GUARDED_BY(mutex) = 1;
};

Fake& TheFake() {
  static Fake* fake = new Fake;
  return *fake;
}

void Pump(Fake& fake) ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const cudaStream_t stream : fake.streams) {
      while (!stream->queue.empty() && stream->queue.front()()) {
        stream->queue.pop_front();
        moved = true;
      }
    }
  }
}

// Begins every call.
cudaError_t Enter(Fake& fake, const char* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mutex) {
  fake.calls.insert(call);
  if (fake.sticky != cudaSuccess) return fake.sticky;
  const auto it = fake.faults.find(call);
  if (it == fake.faults.end() || it->second.skipped-- > 0) {
    Pump(fake);
    return cudaSuccess;
  }
  const cudaError_t error = it->second.error;
  fake.faults.erase(it);
  if (!IsSticky(error)) return error;
  fake.sticky = error;
  for (const cudaStream_t stream : fake.streams) stream->queue.clear();
  return error;
}

CUresult Driver(cudaError_t error) { return static_cast<CUresult>(error); }

Memory NewMemory(size_t bytes) {
  const Memory memory{memfd_create("fake-cuda", MFD_CLOEXEC), bytes};
  PAGODA_CHECK(memory.fd >= 0 && ftruncate(memory.fd, static_cast<off_t>(bytes)) == 0);
  return memory;
}

char* MapAt(void* address, const Memory& memory) {
  void* data = mmap(address, memory.bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | (address != nullptr ? MAP_FIXED : 0), memory.fd, 0);
  PAGODA_CHECK(data != MAP_FAILED);
  return static_cast<char*>(data);
}

CUresult GetAttribute(int* value, CUdevice_attribute, CUdevice) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  *value = fake.descriptors ? 1 : 0;
  return Driver(Enter(fake, "cuDeviceGetAttribute"));
}

CUresult GetGranularity(size_t* bytes, const CUmemAllocationProp*,
                        CUmemAllocationGranularity_flags) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  *bytes = kGranule;
  return Driver(Enter(fake, "cuMemGetAllocationGranularity"));
}

CUresult MemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                   unsigned long long) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cuMemCreate"); error != cudaSuccess) {
    return Driver(error);
  }
  if (bytes > kMemoryBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = fake.next_handle++;
  fake.handles[*handle] = NewMemory(bytes);
  return CUDA_SUCCESS;
}

// What gives back works with a lost device too.
CUresult MemRelease(CUmemGenericAllocationHandle handle) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  close(fake.handles.at(handle).fd);
  fake.handles.erase(handle);
  return CUDA_SUCCESS;
}

CUresult AddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                        unsigned long long) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cuMemAddressReserve"); error != cudaSuccess) {
    return Driver(error);
  }
  void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PAGODA_CHECK(data != MAP_FAILED);
  *address = reinterpret_cast<CUdeviceptr>(data);
  return CUDA_SUCCESS;
}

CUresult AddressFree(CUdeviceptr address, size_t bytes) {
  PAGODA_CHECK(munmap(reinterpret_cast<void*>(address), bytes) == 0);
  return CUDA_SUCCESS;
}

CUresult MemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                unsigned long long) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cuMemMap"); error != cudaSuccess) return Driver(error);
  const Memory& memory = fake.handles.at(handle);
  if (bytes > memory.bytes) return CUDA_ERROR_INVALID_VALUE;
  MapAt(reinterpret_cast<void*>(address), {memory.fd, bytes});
  return CUDA_SUCCESS;
}

CUresult MemUnmap(CUdeviceptr address, size_t bytes) {
  PAGODA_CHECK(mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
  return CUDA_SUCCESS;
}

CUresult SetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  return Driver(Enter(fake, "cuMemSetAccess"));
}

CUresult MemExport(void* fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                   unsigned long long) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cuMemExportToShareableHandle"); error != cudaSuccess) {
    return Driver(error);
  }
  *static_cast<int*>(fd) = fcntl(fake.handles.at(handle).fd, F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}

CUresult MemImport(CUmemGenericAllocationHandle* handle, void* fd, CUmemAllocationHandleType) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cuMemImportFromShareableHandle");
      error != cudaSuccess) {
    return Driver(error);
  }
  const int own = fcntl(static_cast<int>(reinterpret_cast<uintptr_t>(fd)), F_DUPFD_CLOEXEC, 0);
  const off_t bytes = lseek(own, 0, SEEK_END);
  if (bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = fake.next_handle++;
  fake.handles[*handle] = {own, static_cast<size_t>(bytes)};
  return CUDA_SUCCESS;
}

CUresult WriteValue(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  stream->queue.emplace_back([address, value] {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(address))
        .store(value, std::memory_order_release);
    return true;
  });
  return Driver(Enter(fake, "cuStreamWriteValue64"));
}

CUresult WaitValue(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  stream->queue.emplace_back([address, value] {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(address))
               .load(std::memory_order_acquire) >= value;
  });
  return Driver(Enter(fake, "cuStreamWaitValue64"));
}

}  // namespace

void FailFakeCuda(const std::string& call, cudaError_t error, int skipped) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  fake.faults[call] = {error, skipped};
}

void ResetFakeCuda() {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  fake.faults.clear();
  fake.sticky = cudaSuccess;
  fake.descriptors = true;
}

void SetFakeCudaDescriptors(bool supported) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  fake.descriptors = supported;
}

int FakeCudaObjectCount() {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  return static_cast<int>(fake.streams.size() + fake.events.size() + fake.allocations.size() +
                          fake.registered.size() + fake.handles.size());
}

std::vector<std::string> FakeCudaCalls() {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  return {fake.calls.begin(), fake.calls.end()};
}

}  // namespace pagoda

using pagoda::Driver;
using pagoda::Enter;
using pagoda::Fake;
using pagoda::MapAt;
using pagoda::Memory;
using pagoda::NewMemory;
using pagoda::TheFake;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  *count = 2;
  return Enter(fake, "cudaGetDeviceCount");
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  *properties = {};
  std::strcpy(properties->name, "fake");
  properties->uuid.bytes[0] = static_cast<char>(ordinal + 1);
  properties->totalGlobalMem = pagoda::kMemoryBytes;
  return Enter(fake, "cudaGetDeviceProperties");
}

cudaError_t cudaSetDevice(int) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  return Enter(fake, "cudaSetDevice");
}

cudaError_t cudaGetLastError() {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  return fake.sticky;
}

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheFake"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake"; }

cudaError_t cudaMalloc(void** data, size_t bytes) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaMalloc"); error != cudaSuccess) return error;
  if (bytes > pagoda::kMemoryBytes) return cudaErrorMemoryAllocation;
  const Memory memory = NewMemory(bytes);
  char* mapped = MapAt(nullptr, memory);
  fake.allocations[mapped] = memory;
  *data = mapped;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  const Memory memory = fake.allocations.at(static_cast<char*>(data));
  fake.allocations.erase(static_cast<char*>(data));
  munmap(data, memory.bytes);
  close(memory.fd);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaStreamCreateWithFlags"); error != cudaSuccess) {
    return error;
  }
  *stream = new CUstream_st;
  fake.streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  fake.streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaEventCreateWithFlags"); error != cudaSuccess) {
    return error;
  }
  *event = new CUevent_st;
  fake.events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  fake.events.erase(event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaEventRecord"); error != cudaSuccess) return error;
  stream->queue.emplace_back([event, number = ++event->recorded] {
    event->done = number;
    return true;
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaEventQuery"); error != cudaSuccess) return error;
  return event->done == event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaStreamWaitEvent"); error != cudaSuccess) {
    return error;
  }
  stream->queue.emplace_back([event, number = event->recorded] { return event->done >= number; });
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaHostRegister"); error != cudaSuccess) return error;
  fake.registered[static_cast<char*>(data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  return fake.registered.erase(static_cast<char*>(data)) == 1 ? cudaSuccess
                                                              : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaHostGetDevicePointer(void** address, void* data, unsigned) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaHostGetDevicePointer"); error != cudaSuccess) {
    return error;
  }
  auto it = fake.registered.upper_bound(static_cast<char*>(data));
  if (it == fake.registered.begin()) return cudaErrorInvalidValue;
  --it;
  if (static_cast<char*>(data) >= it->first + it->second) return cudaErrorInvalidValue;
  *address = data;
  return cudaSuccess;
}

cudaError_t cudaMemcpyBatchAsync(void* const* targets, const void* const* sources,
                                 const size_t* sizes, size_t count, cudaMemcpyAttributes*, size_t*,
                                 size_t, cudaStream_t stream) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaMemcpyBatchAsync"); error != cudaSuccess) {
    return error;
  }
  for (size_t i = 0; i < count; ++i) {
    stream->queue.emplace_back([target = targets[i], source = sources[i], bytes = sizes[i]] {
      std::memcpy(target, source, bytes);
      return true;
    });
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaMemsetAsync"); error != cudaSuccess) return error;
  stream->queue.emplace_back([=] {
    std::memset(target, value, bytes);
    return true;
  });
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaIpcGetMemHandle"); error != cudaSuccess) {
    return error;
  }
  const Memory memory = fake.allocations.at(static_cast<char*>(data));
  *handle = {};
  std::snprintf(handle->reserved, sizeof(handle->reserved), "/proc/%d/fd/%d", getpid(), memory.fd);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned) {
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  if (const cudaError_t error = Enter(fake, "cudaIpcOpenMemHandle"); error != cudaSuccess) {
    return error;
  }
  handle.reserved[sizeof(handle.reserved) - 1] = '\0';
  const int fd = open(handle.reserved, O_RDWR | O_CLOEXEC);
  if (fd < 0) return cudaErrorMapBufferObjectFailed;
  const Memory memory{fd, static_cast<size_t>(lseek(fd, 0, SEEK_END))};
  char* mapped = MapAt(nullptr, memory);
  fake.allocations[mapped] = memory;
  *data = mapped;
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* data) { return cudaFree(data); }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string, void*> functions = {
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&pagoda::GetAttribute)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&pagoda::GetGranularity)},
      {"cuMemCreate", reinterpret_cast<void*>(&pagoda::MemCreate)},
      {"cuMemRelease", reinterpret_cast<void*>(&pagoda::MemRelease)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&pagoda::AddressReserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&pagoda::AddressFree)},
      {"cuMemMap", reinterpret_cast<void*>(&pagoda::MemMap)},
      {"cuMemUnmap", reinterpret_cast<void*>(&pagoda::MemUnmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&pagoda::SetAccess)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(&pagoda::MemExport)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(&pagoda::MemImport)},
      {"cuStreamWriteValue64", reinterpret_cast<void*>(&pagoda::WriteValue)},
      {"cuStreamWaitValue64", reinterpret_cast<void*>(&pagoda::WaitValue)},
  };
  Fake& fake = TheFake();
  absl::MutexLock lock(&fake.mutex);
  const auto it = functions.find(name);
  *function = it == functions.end() ? nullptr : it->second;
  *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return Enter(fake, "cudaGetDriverEntryPoint");
}

}  // extern "C"
