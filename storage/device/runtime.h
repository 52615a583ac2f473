// One GPU through a thin facade: buffers, streams, events, batched copies, flag words, handles for
// other processes. Not a scheduler: what is copied when is the business of the pool and the mover.
// Two backends: CUDA (cuda_runtime.h) and the host (host_runtime.h), whose streams are as
// asynchronous and which finds what a GPU would let pass: memory freed under a copy, copies that
// nothing orders, addresses outside of any buffer.
//
// Units      bytes
// Threads    a runtime: any thread; a stream: one at a time; an event: recorded by one at a time,
//            asked and waited for by any
// Ownership  buffers, streams, events and registrations must not outlive their runtime. Memory that
//            is on either end of a copy belongs to the copy until an event behind it is done, and a
//            stream is destroyed idle: nobody else waits for it
// Errors     RESOURCE_EXHAUSTED   no device memory
//            UNAVAILABLE          the device is lost: all work on it has ended and it does no more;
//                                 every later call says the same
//            DEADLINE_EXCEEDED    Await only; the work goes on
//            INVALID_ARGUMENT     an address or size that this device cannot use
//            FAILED_PRECONDITION  an event that was never recorded
//            UNIMPLEMENTED        this driver or device cannot, e.g. export memory
//            INTERNAL             an error of CUDA that we do not understand; its name is told
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/base/unique_fd.h"

namespace pagoda {

// What names a GPU for every process that may see it; ordinals differ between containers.
struct DeviceUuid {
  std::array<uint8_t, 16> bytes{};
  bool operator==(const DeviceUuid&) const = default;
  std::string ToString() const;  // "GPU-01020304-0506-...", as nvidia-smi prints it
};

struct DeviceInfo {
  DeviceUuid uuid;
  std::string name;
  int64_t memory_bytes = 0;  // all of it, whoever uses it
};

enum class CopyDirection : uint8_t { kHostToDevice = 0, kDeviceToHost = 1, kWithinDevice = 2 };
absl::string_view CopyDirectionName(CopyDirection direction);  // "h2d", "d2h", "d2d"

struct CopyPiece {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  int64_t bytes = 0;
};

// A point in a stream. Recorded again, it is the newer point.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether everything before the point is done. An error: the work failed, and has ended.
  virtual absl::StatusOr<bool> Done() = 0;
};

// Work in order. No call waits for the device.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // Pieces are copied in any order. A source in host memory may be read before earlier work of the
  // stream is done: it must not change from this call on.
  virtual absl::Status CopyBatch(CopyDirection direction, absl::Span<const CopyPiece> pieces) = 0;
  // Writes zeros into device memory.
  virtual absl::Status Clear(std::byte* target, int64_t bytes) = 0;

  virtual absl::Status Record(DeviceEvent& event) = 0;
  // What follows in this stream waits for the point that was recorded last.
  virtual absl::Status WaitFor(DeviceEvent& event) = 0;

  // Flag words are in registered host memory, 8-aligned: every process that maps them, and the CPU,
  // can wait for them. Written after all work before it; `value` never goes down.
  virtual absl::Status WriteFlag(uint64_t* word, uint64_t value) = 0;
  // What follows waits until the word is at least `value`, whoever writes it.
  virtual absl::Status WaitFlag(const uint64_t* word, uint64_t value) = 0;

  virtual void* native() = 0;  // cudaStream_t, for libraries that want one; null on the host
};

// Device memory; freed with this object.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 protected:
  DeviceBuffer(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* const data_;
  const int64_t bytes_;
};

// Host memory that the device reads and writes at full speed, until this object goes.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
};

enum class DeviceSharing : uint8_t { kPrivate = 0, kExportable = 1 };

// Device memory for another process. The kind decides which of the two is meant.
struct MemoryHandle {
  enum class Kind : uint8_t {
    kDescriptor = 1,  // fd: of the driver's memory; counted, so that a free waits for importers
    kLegacyIpc = 2,   // ipc: bytes of cudaIpcMemHandle_t; the exporter must outlive its importers
    kMemfd = 3,       // fd: of the host backend
  };
  Kind kind = Kind::kDescriptor;
  DeviceUuid uuid;
  int64_t bytes = 0;
  UniqueFd fd;
  std::array<uint8_t, 64> ipc{};
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual const DeviceInfo& info() const = 0;
  // OK, or why the device is lost.
  virtual absl::Status health() const = 0;

  // Makes it the calling thread's device, for libraries that work on that.
  virtual absl::Status MakeCurrent() = 0;

  // At least `bytes`, 256-aligned; not cleared.
  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t bytes,
                                                                 DeviceSharing sharing) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() = 0;
  // `data` and `bytes` are multiples of 4096.
  virtual absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(std::byte* data,
                                                                         int64_t bytes) = 0;
  // Waits for the event.
  virtual absl::Status Await(DeviceEvent& event, absl::Duration timeout) = 0;

  // REQUIRES: the buffer is this runtime's, and exportable.
  virtual absl::StatusOr<MemoryHandle> Export(const DeviceBuffer& buffer) = 0;
  // Maps memory of the same GPU. What this does with the exporter's death: see MemoryHandle::Kind.
  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> Import(MemoryHandle handle) = 0;

  // An allocator's word on a part of its memory, device or host: from here on nobody may copy there
  // (or may again). The host backend holds copies against it; a GPU cannot.
  virtual void NoteFreed(const std::byte* data, int64_t bytes) = 0;
  virtual void NoteOwned(const std::byte* data, int64_t bytes) = 0;
};

// A flag word, seen and written by the CPU. Acquire and release: what was written before the flag
// is there for who has seen it.
inline uint64_t LoadFlag(const uint64_t* word) {
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
}
inline void StoreFlag(uint64_t* word, uint64_t value) {
  std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
}

}  // namespace pagoda
