#include "storage/device/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "storage/base/status_macros.h"
#include "storage/device/cuda_driver.h"
#include "storage/device/cuda_memory.h"
#include "storage/device/cuda_status.h"

namespace pagoda {
namespace {

constexpr absl::Duration kPollMin = absl::Microseconds(5);
constexpr absl::Duration kPollMax = absl::Milliseconds(1);

class CudaRuntime;

class CudaEvent final : public DeviceEvent {
 public:
  CudaEvent(CudaRuntime* runtime, cudaEvent_t event) : runtime_(runtime), event_(event) {}
  ~CudaEvent() override;
  absl::StatusOr<bool> Done() override;

 private:
  friend class CudaStream;
  CudaRuntime* const runtime_;
  const cudaEvent_t event_;
  bool recorded_ = false;
};

class CudaStream final : public DeviceStream {
 public:
  CudaStream(CudaRuntime* runtime, cudaStream_t stream) : runtime_(runtime), stream_(stream) {}
  ~CudaStream() override;
  absl::Status CopyBatch(CopyDirection direction, absl::Span<const CopyPiece> pieces) override;
  absl::Status Clear(std::byte* target, int64_t bytes) override;
  absl::Status Record(DeviceEvent& event) override;
  absl::Status WaitFor(DeviceEvent& event) override;
  absl::Status WriteFlag(uint64_t* word, uint64_t value) override;
  absl::Status WaitFlag(const uint64_t* word, uint64_t value) override;
  void* native() override { return stream_; }

 private:
  absl::StatusOr<CUdeviceptr> FlagAddress(const uint64_t* word);

  CudaRuntime* const runtime_;
  const cudaStream_t stream_;
};

class CudaRegistration final : public HostRegistration {
 public:
  CudaRegistration(CudaRuntime* runtime, std::byte* data) : runtime_(runtime), data_(data) {}
  ~CudaRegistration() override;

 private:
  CudaRuntime* const runtime_;
  std::byte* const data_;
};

class CudaRuntime final : public DeviceRuntime {
 public:
  CudaRuntime(DeviceInfo info, int ordinal, const CudaDriver& driver)
      : info_(std::move(info)),
        ordinal_(ordinal),
        driver_(driver),
        memory_(driver, ordinal, info_.uuid) {}

  const DeviceInfo& info() const override { return info_; }
  absl::Status health() const override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return health_;
  }

  // First in every call.
  absl::Status MakeCurrent() override {
    PAGODA_RETURN_IF_ERROR(health());
    return Check("cudaSetDevice", cudaSetDevice(ordinal_));
  }
  absl::Status Check(absl::string_view call, cudaError_t error) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (error == cudaSuccess) return absl::OkStatus();
    (void)cudaGetLastError();  // or the next call of this thread reports it once more
    const absl::Status status = FromCuda(call, error);
    if (!IsSticky(error)) return status;
    absl::MutexLock lock(&mutex_);
    if (health_.ok()) {
      health_ = absl::UnavailableError(
          absl::StrFormat("device %s is lost: %s", info_.uuid.ToString(), status.message()));
    }
    return health_;
  }
  absl::Status CheckDriver(absl::string_view call, CUresult result) {
    return Check(call, static_cast<cudaError_t>(result));
  }
  const CudaDriver& driver() const { return driver_; }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t bytes,
                                                         DeviceSharing sharing) override {
    if (bytes <= 0) {
      return absl::InvalidArgumentError(absl::StrFormat("cuda: a buffer of %d bytes", bytes));
    }
    PAGODA_RETURN_IF_ERROR(MakeCurrent());
    return Cleared(memory_.Allocate(bytes, sharing));
  }

  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() override {
    PAGODA_RETURN_IF_ERROR(MakeCurrent());
    cudaStream_t stream = nullptr;
    PAGODA_RETURN_IF_ERROR(Check("cudaStreamCreateWithFlags",
                                 cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return std::make_unique<CudaStream>(this, stream);
  }

  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    PAGODA_RETURN_IF_ERROR(MakeCurrent());
    cudaEvent_t event = nullptr;
    PAGODA_RETURN_IF_ERROR(Check("cudaEventCreateWithFlags",
                                 cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return std::make_unique<CudaEvent>(this, event);
  }

  absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(std::byte* data,
                                                                 int64_t bytes) override {
    PAGODA_RETURN_IF_ERROR(MakeCurrent());
    PAGODA_RETURN_IF_ERROR(Check(
        "cudaHostRegister", cudaHostRegister(data, static_cast<size_t>(bytes),
                                             cudaHostRegisterPortable | cudaHostRegisterMapped)));
    return std::make_unique<CudaRegistration>(this, data);
  }

  // By asking: CUDA's own wait has no deadline.
  absl::Status Await(DeviceEvent& event, absl::Duration timeout) override {
    const absl::Time end = absl::Now() + timeout;
    absl::Duration pause = kPollMin;
    while (true) {
      PAGODA_ASSIGN_OR_RETURN(const bool done, event.Done());
      if (done) return absl::OkStatus();
      if (absl::Now() >= end) {
        return absl::DeadlineExceededError(
            absl::StrFormat("cuda: an event was not done in %s", absl::FormatDuration(timeout)));
      }
      absl::SleepFor(pause);
      pause = std::min(pause * 2, kPollMax);
    }
  }

  absl::StatusOr<MemoryHandle> Export(const DeviceBuffer& buffer) override {
    PAGODA_RETURN_IF_ERROR(MakeCurrent());
    return Cleared(memory_.Export(buffer));
  }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Import(MemoryHandle handle) override {
    PAGODA_RETURN_IF_ERROR(MakeCurrent());
    return Cleared(memory_.Import(std::move(handle)));
  }

  void NoteFreed(const std::byte*, int64_t) override {}
  void NoteOwned(const std::byte*, int64_t) override {}

 private:
  // Takes the error of a memory call from the thread, and a loss behind it into account.
  template <typename T>
  absl::StatusOr<T> Cleared(absl::StatusOr<T> result) {
    if (!result.ok()) (void)Check("cudaGetLastError", cudaGetLastError());
    return result;
  }

  // Constant after construction.
  const DeviceInfo info_;
  const int ordinal_;
  const CudaDriver driver_;
  const CudaMemory memory_;

  // Guarded by mutex_.
  mutable absl::Mutex mutex_;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
};

// Destructors have nobody to tell of an error; a lost device has freed everything.
CudaEvent::~CudaEvent() { (void)cudaEventDestroy(event_); }
CudaStream::~CudaStream() { (void)cudaStreamDestroy(stream_); }
CudaRegistration::~CudaRegistration() {
  (void)runtime_->MakeCurrent();
  (void)cudaHostUnregister(data_);
}

absl::StatusOr<bool> CudaEvent::Done() {
  PAGODA_RETURN_IF_ERROR(runtime_->MakeCurrent());
  if (!recorded_) return absl::FailedPreconditionError("cuda: an event never recorded");
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) return false;
  PAGODA_RETURN_IF_ERROR(runtime_->Check("cudaEventQuery", error));
  return true;
}

absl::Status CudaStream::CopyBatch(CopyDirection direction, absl::Span<const CopyPiece> pieces) {
  PAGODA_RETURN_IF_ERROR(runtime_->MakeCurrent());
  if (pieces.empty()) return absl::OkStatus();
#if CUDART_VERSION >= 12080
  std::vector<void*> targets;
  // From 13.0 on the pointers are to const and a failed index is not told.
#if CUDART_VERSION >= 13000
  std::vector<const void*> sources;
#else
  std::vector<void*> sources;
#endif
  std::vector<size_t> sizes;
  targets.reserve(pieces.size());
  sources.reserve(pieces.size());
  sizes.reserve(pieces.size());
  for (const CopyPiece& piece : pieces) {
    targets.push_back(piece.target);
    sources.push_back(const_cast<std::byte*>(piece.source));
    sizes.push_back(static_cast<size_t>(piece.bytes));
  }
  cudaMemcpyAttributes attributes = {};
  // A source on the device may still be written by what is before in the stream; host pages are at
  // rest, and the driver may read them when it likes.
  attributes.srcAccessOrder = direction == CopyDirection::kHostToDevice
                                  ? cudaMemcpySrcAccessOrderAny
                                  : cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(),
                                                 pieces.size(), &attributes, &first, 1, stream_);
#else
  size_t failed = 0;
  const cudaError_t error =
      cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), pieces.size(), &attributes,
                           &first, 1, &failed, stream_);
#endif
  return runtime_->Check("cudaMemcpyBatchAsync", error);
#else
  for (const CopyPiece& piece : pieces) {
    PAGODA_RETURN_IF_ERROR(runtime_->Check(
        "cudaMemcpyAsync",
        cudaMemcpyAsync(piece.target, piece.source, static_cast<size_t>(piece.bytes),
                        cudaMemcpyDefault, stream_)));
  }
  return absl::OkStatus();
#endif
}

absl::Status CudaStream::Clear(std::byte* target, int64_t bytes) {
  PAGODA_RETURN_IF_ERROR(runtime_->MakeCurrent());
  return runtime_->Check("cudaMemsetAsync",
                         cudaMemsetAsync(target, 0, static_cast<size_t>(bytes), stream_));
}

absl::Status CudaStream::Record(DeviceEvent& event) {
  auto& cuda = static_cast<CudaEvent&>(event);
  PAGODA_RETURN_IF_ERROR(runtime_->MakeCurrent());
  PAGODA_RETURN_IF_ERROR(runtime_->Check("cudaEventRecord", cudaEventRecord(cuda.event_, stream_)));
  cuda.recorded_ = true;
  return absl::OkStatus();
}

absl::Status CudaStream::WaitFor(DeviceEvent& event) {
  const auto& cuda = static_cast<CudaEvent&>(event);
  PAGODA_RETURN_IF_ERROR(runtime_->MakeCurrent());
  if (!cuda.recorded_) {
    return absl::FailedPreconditionError("cuda: a wait for an event never recorded");
  }
  return runtime_->Check("cudaStreamWaitEvent",
                         cudaStreamWaitEvent(stream_, cuda.event_, cudaEventWaitDefault));
}

absl::StatusOr<CUdeviceptr> CudaStream::FlagAddress(const uint64_t* word) {
  PAGODA_RETURN_IF_ERROR(runtime_->MakeCurrent());
  void* address = nullptr;
  cudaError_t error = cudaErrorInvalidValue;
  if (reinterpret_cast<uintptr_t>(word) % sizeof(uint64_t) == 0) {
    error = cudaHostGetDevicePointer(&address, const_cast<uint64_t*>(word), /*flags=*/0);
  }
  if (error == cudaErrorInvalidValue || error == cudaErrorHostMemoryNotRegistered) {
    (void)cudaGetLastError();
    return absl::InvalidArgumentError(
        absl::StrFormat("cuda: flag word at %p is not 8-aligned in registered host memory", word));
  }
  PAGODA_RETURN_IF_ERROR(runtime_->Check("cudaHostGetDevicePointer", error));
  return reinterpret_cast<CUdeviceptr>(address);
}

absl::Status CudaStream::WriteFlag(uint64_t* word, uint64_t value) {
  PAGODA_ASSIGN_OR_RETURN(const CUdeviceptr address, FlagAddress(word));
  return runtime_->CheckDriver("cuStreamWriteValue64",
                               runtime_->driver().stream_write_value64(
                                   stream_, address, value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

absl::Status CudaStream::WaitFlag(const uint64_t* word, uint64_t value) {
  PAGODA_ASSIGN_OR_RETURN(const CUdeviceptr address, FlagAddress(word));
  return runtime_->CheckDriver(
      "cuStreamWaitValue64",
      runtime_->driver().stream_wait_value64(stream_, address, value, CU_STREAM_WAIT_VALUE_GEQ));
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListCudaDevices() {
  int count = 0;
  PAGODA_RETURN_IF_ERROR(FromCuda("cudaGetDeviceCount", cudaGetDeviceCount(&count)));
  std::vector<DeviceInfo> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties;
    PAGODA_RETURN_IF_ERROR(
        FromCuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, ordinal)));
    DeviceInfo& info = devices.emplace_back();
    static_assert(sizeof(properties.uuid.bytes) == sizeof(info.uuid.bytes));
    std::memcpy(info.uuid.bytes.data(), properties.uuid.bytes, info.uuid.bytes.size());
    info.name = properties.name;
    info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenCudaDevice(const DeviceUuid& uuid) {
  PAGODA_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, ListCudaDevices());
  for (size_t ordinal = 0; ordinal < devices.size(); ++ordinal) {
    if (devices[ordinal].uuid != uuid) continue;
    PAGODA_RETURN_IF_ERROR(FromCuda("cudaSetDevice", cudaSetDevice(static_cast<int>(ordinal))));
    PAGODA_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Load());
    return std::make_unique<CudaRuntime>(devices[ordinal], static_cast<int>(ordinal), driver);
  }
  return absl::NotFoundError(absl::StrFormat("cuda: no GPU %s among %d; `nvidia-smi -L` lists them",
                                             uuid.ToString(), devices.size()));
}

}  // namespace pagoda
