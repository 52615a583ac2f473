// Memory of one GPU for pages: a budget taken at start, in chunks; slabs of exact sizes out of
// them. A slab that is given back is used again only when all that may still read it has passed:
// streams and workers are timelines (fence.h), and every user of a slab leaves a fence on it.
//
// Units      bytes; slabs are multiples of 4096
// Threads    every method from any thread
// Ownership  a DeviceSlab gives itself back and must not outlive its pool, nor the pool its runtime
// Errors     RESOURCE_EXHAUSTED  no slab free; says what was asked, is free and is waited for
//            INVALID_ARGUMENT    larger than a chunk, or not positive
//            ABORTED             a chunk has to be replaced, and the device has no memory for that
//            others as in runtime.h: the device refuses or is lost
// Limits     chunk_count_max chunks, and one more while it takes the place of another; a worker
// that neither reads on nor ends holds back what it was
//            given for as long, which its lease's owner has to end (by ending its process)
// Cost       Allocate and give back: O(log chunks), no call to the device unless a chunk gets
//            another scope, which clears it, or replaces it where others had a handle of it
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "storage/base/scope.h"
#include "storage/device/device_slabs.h"
#include "storage/device/fence.h"
#include "storage/device/runtime.h"

namespace pagoda {

struct DevicePoolOptions {
  static constexpr int64_t chunk_count_max = 1 << 16;
  int64_t capacity_bytes = 0;               // required; rounded down to whole chunks
  int64_t chunk_bytes = int64_t{64} << 20;  // a multiple of 2 MiB, the driver's granule
  DeviceSharing sharing = DeviceSharing::kExportable;
  absl::Duration clear_timeout = absl::Seconds(10);  // of a chunk; takes microseconds
  absl::Status Validate() const;
};

class DevicePool;

// Device memory of one owner. Move-only.
class DeviceSlab {
 public:
  DeviceSlab() = default;
  DeviceSlab(DeviceSlab&& other) noexcept { *this = std::move(other); }
  DeviceSlab& operator=(DeviceSlab&& other) noexcept;
  ~DeviceSlab() { Reset(); }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return place_.bytes; }
  bool empty() const { return data_ == nullptr; }
  const SlabPlace& place() const { return place_; }
  // The bytes are not used again before this fence is passed; of each timeline the last counts.
  // From any thread, while nobody resets the slab.
  void KeepUntil(const Fence& fence) const;
  void Reset();

 private:
  friend class DevicePool;
  DevicePool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  SlabPlace place_;
};

class DevicePool {
 public:
  static absl::StatusOr<std::shared_ptr<DevicePool>> Create(DeviceRuntime& runtime,
                                                            const DevicePoolOptions& options);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // At least `bytes`, rounded up to a multiple of 4096; not cleared, but only bytes of this scope
  // were ever there, or zeros.
  absl::StatusOr<DeviceSlab> Allocate(const ScopeId& scope, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);

  TimelineId AddTimeline() ABSL_LOCKS_EXCLUDED(mutex_);
  void Advance(TimelineId timeline, uint64_t value) ABSL_LOCKS_EXCLUDED(mutex_);
  // Its process has ended: it reads nothing more.
  void EndTimeline(TimelineId timeline) ABSL_LOCKS_EXCLUDED(mutex_);

  // For a process that may read the slab's scope: the chunk that the slab is in.
  absl::StatusOr<MemoryHandle> Export(const DeviceSlab& slab) ABSL_LOCKS_EXCLUDED(mutex_);
  // That process may have the handle: it holds the chunk to the scope until it ends.
  void AddImporter(const DeviceSlab& slab, TimelineId importer, MemoryHandle::Kind kind)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether all of them would be free at once when they are given back.
  bool AreUnread(absl::Span<const DeviceSlab> slabs) const ABSL_LOCKS_EXCLUDED(mutex_);
  // As DeviceSlabs.
  std::vector<std::optional<size_t>> SlabsInTheWay(const ScopeId& scope) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceUsage usage() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t timeline_count() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckAccounting() const ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceRuntime& runtime() const { return runtime_; }

 private:
  friend class DeviceSlab;

  DevicePool(DeviceRuntime& runtime, const DevicePoolOptions& options);
  absl::Status OpenChunk(const DeviceSlabs::TakenChunk& taken) ABSL_LOCKS_EXCLUDED(mutex_);
  // Fills the chunk with zeros, or new memory in its place, if it is not null.
  absl::Status Clear(uint32_t chunk, std::unique_ptr<DeviceBuffer>& fresh)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Keep(const SlabPlace& place, const Fence& fence) ABSL_LOCKS_EXCLUDED(mutex_);
  void Free(const SlabPlace& place) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteFreed(absl::Span<const SlabPlace> freed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction, or Create.
  DeviceRuntime& runtime_;
  const DevicePoolOptions options_;

  // Guarded by mutex_. No call to the device is made while it is held, but for notes.
  mutable absl::Mutex mutex_;
  DeviceSlabs slabs_ ABSL_GUARDED_BY(mutex_);
  // One is replaced only while it is closed.
  std::vector<std::unique_ptr<DeviceBuffer>> chunks_ ABSL_GUARDED_BY(mutex_);

  // Guarded by clear_mutex_, which is held while a chunk is cleared; before mutex_.
  absl::Mutex clear_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::unique_ptr<DeviceStream> clear_stream_ ABSL_GUARDED_BY(clear_mutex_);
  std::unique_ptr<DeviceEvent> clear_event_ ABSL_GUARDED_BY(clear_mutex_);
};

}  // namespace pagoda
