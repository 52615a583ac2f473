#include "storage/device/device_pool.h"

#include "absl/strings/str_format.h"
#include "storage/base/bytes.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int64_t kChunkGranuleBytes = int64_t{2} << 20;
constexpr int64_t kSlabGranuleBytes = 4096;

}  // namespace

absl::Status DevicePoolOptions::Validate() const {
  if (chunk_bytes <= 0 || chunk_bytes % kChunkGranuleBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hbm chunk_bytes is %d; must be a multiple of 2 MiB", chunk_bytes));
  }
  if (capacity_bytes < chunk_bytes || capacity_bytes / chunk_bytes > chunk_count_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hbm capacity_bytes is %d; must be 1 to %d chunks of %d", capacity_bytes,
                        chunk_count_max, chunk_bytes));
  }
  return absl::OkStatus();
}

DeviceSlab& DeviceSlab::operator=(DeviceSlab&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  place_ = std::exchange(other.place_, SlabPlace{});
  return *this;
}

void DeviceSlab::KeepUntil(const Fence& fence) const { pool_->Keep(place_, fence); }

void DeviceSlab::Reset() {
  if (data_ == nullptr) return;
  pool_->Free(place_);
  pool_ = nullptr;
  data_ = nullptr;
  place_ = SlabPlace{};
}

absl::StatusOr<std::shared_ptr<DevicePool>> DevicePool::Create(DeviceRuntime& runtime,
                                                               const DevicePoolOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  std::shared_ptr<DevicePool> pool(new DevicePool(runtime, options));
  for (int64_t i = 0; i < options.capacity_bytes / options.chunk_bytes; ++i) {
    PAGODA_ASSIGN_OR_RETURN(auto chunk, runtime.Allocate(options.chunk_bytes, options.sharing));
    runtime.NoteFreed(chunk->data(), chunk->bytes());
    absl::MutexLock lock(&pool->mutex_);
    pool->chunks_.push_back(std::move(chunk));
  }
  absl::MutexLock lock(&pool->clear_mutex_);
  PAGODA_ASSIGN_OR_RETURN(pool->clear_stream_, runtime.NewStream());
  PAGODA_ASSIGN_OR_RETURN(pool->clear_event_, runtime.NewEvent());
  return pool;
}

DevicePool::DevicePool(DeviceRuntime& runtime, const DevicePoolOptions& options)
    : runtime_(runtime),
      options_(options),
      slabs_(options.capacity_bytes / options.chunk_bytes, options.chunk_bytes) {}

DevicePool::~DevicePool() {
  absl::MutexLock lock(&mutex_);
  PAGODA_CHECK(slabs_.usage().used_bytes == 0);
}

absl::StatusOr<DeviceSlab> DevicePool::Allocate(const ScopeId& scope, int64_t bytes) {
  const int64_t slab_bytes = AlignUp(bytes, kSlabGranuleBytes);
  if (bytes <= 0 || slab_bytes > options_.chunk_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "device pool: a slab of %d bytes, from 1 to %d fit", bytes, options_.chunk_bytes));
  }
  while (true) {
    std::optional<DeviceSlabs::TakenChunk> chunk;
    {
      absl::MutexLock lock(&mutex_);
      if (const std::optional<SlabPlace> place = slabs_.TakeSlab(scope, slab_bytes)) {
        DeviceSlab slab;
        slab.pool_ = this;
        slab.data_ = chunks_[place->chunk]->data() + place->offset;
        slab.place_ = *place;
        runtime_.NoteOwned(slab.data_, slab_bytes);
        return slab;
      }
      chunk = slabs_.TakeChunk(scope, slab_bytes);
      if (!chunk.has_value()) {
        const DeviceUsage usage = slabs_.usage();
        return absl::ResourceExhaustedError(absl::StrFormat(
            "device pool: asked %d bytes, %d of %d in chunks of no scope, %d waited for",
            slab_bytes, usage.capacity_bytes - usage.reserved_bytes, usage.capacity_bytes,
            usage.limbo_bytes));
      }
    }
    PAGODA_RETURN_IF_ERROR(OpenChunk(*chunk));
    // Another thread may take all of it; then there is another turn, or there is no chunk.
  }
}

absl::Status DevicePool::OpenChunk(const DeviceSlabs::TakenChunk& taken) {
  absl::Status status;
  std::unique_ptr<DeviceBuffer> fresh;  // then what it replaces; let go after the lock
  if (taken.replace) {
    auto allocated = runtime_.Allocate(options_.chunk_bytes, options_.sharing);
    status = allocated.status();
    if (status.ok()) fresh = *std::move(allocated);
    // Another code than a full pool's: nothing that makes way in the pool would help.
    if (absl::IsResourceExhausted(status)) status = absl::AbortedError(status.message());
  }
  if (status.ok() && taken.clear) status = Clear(taken.chunk, fresh);
  // Its clear may still be under way: the chunk is nobody's until the process ends.
  if (absl::IsDeadlineExceeded(status)) return status;
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) {
    slabs_.ReturnChunk(taken.chunk);
    return status;
  }
  if (fresh != nullptr) chunks_[taken.chunk].swap(fresh);
  slabs_.OpenChunk(taken.chunk);
  return absl::OkStatus();
}

absl::Status DevicePool::Clear(uint32_t index, std::unique_ptr<DeviceBuffer>& fresh) {
  const DeviceBuffer* chunk = fresh.get();
  if (chunk == nullptr) {
    absl::MutexLock lock(&mutex_);
    chunk = chunks_[index].get();
  }
  absl::MutexLock lock(&clear_mutex_);
  runtime_.NoteOwned(chunk->data(), chunk->bytes());
  absl::Status status = clear_stream_->Clear(chunk->data(), chunk->bytes());
  if (status.ok()) status = clear_stream_->Record(*clear_event_);
  if (status.ok()) status = runtime_.Await(*clear_event_, options_.clear_timeout);
  if (absl::IsDeadlineExceeded(status)) {
    (void)fresh.release();  // still written
  } else {
    runtime_.NoteFreed(chunk->data(), chunk->bytes());
  }
  return status;
}

void DevicePool::Keep(const SlabPlace& place, const Fence& fence) {
  absl::MutexLock lock(&mutex_);
  slabs_.Keep(place, fence);
}

void DevicePool::Free(const SlabPlace& place) {
  absl::MutexLock lock(&mutex_);
  std::vector<SlabPlace> freed;
  slabs_.Free(place, freed);
  NoteFreed(freed);
}

// Under the lock: nobody may get the bytes before the note is made.
void DevicePool::NoteFreed(absl::Span<const SlabPlace> freed) {
  for (const SlabPlace& place : freed) {
    runtime_.NoteFreed(chunks_[place.chunk]->data() + place.offset, place.bytes);
  }
}

TimelineId DevicePool::AddTimeline() {
  absl::MutexLock lock(&mutex_);
  return slabs_.AddTimeline();
}

void DevicePool::Advance(TimelineId timeline, uint64_t value) {
  absl::MutexLock lock(&mutex_);
  std::vector<SlabPlace> freed;
  slabs_.Advance(timeline, value, freed);
  NoteFreed(freed);
}

void DevicePool::EndTimeline(TimelineId timeline) {
  absl::MutexLock lock(&mutex_);
  std::vector<SlabPlace> freed;
  slabs_.EndTimeline(timeline, freed);
  NoteFreed(freed);
}

absl::StatusOr<MemoryHandle> DevicePool::Export(const DeviceSlab& slab) {
  PAGODA_CHECK(slab.pool_ == this);
  const DeviceBuffer* chunk;  // stays while the slab is taken
  {
    absl::MutexLock lock(&mutex_);
    chunk = chunks_[slab.place_.chunk].get();
  }
  return runtime_.Export(*chunk);
}

// Legacy handles are not counted: their memory must not be freed while they are mapped.
void DevicePool::AddImporter(const DeviceSlab& slab, TimelineId importer, MemoryHandle::Kind kind) {
  absl::MutexLock lock(&mutex_);
  slabs_.AddImporter(slab.place_, importer, kind == MemoryHandle::Kind::kLegacyIpc);
}

bool DevicePool::AreUnread(absl::Span<const DeviceSlab> slabs) const {
  absl::MutexLock lock(&mutex_);
  for (const DeviceSlab& slab : slabs) {
    if (!slabs_.IsUnread(slab.place_)) return false;
  }
  return true;
}

std::vector<std::optional<size_t>> DevicePool::SlabsInTheWay(const ScopeId& scope) const {
  absl::MutexLock lock(&mutex_);
  return slabs_.SlabsInTheWay(scope);
}

size_t DevicePool::timeline_count() const {
  absl::MutexLock lock(&mutex_);
  return slabs_.timeline_count();
}

DeviceUsage DevicePool::usage() const {
  absl::MutexLock lock(&mutex_);
  return slabs_.usage();
}

absl::Status DevicePool::CheckAccounting() const {
  absl::MutexLock lock(&mutex_);
  return slabs_.CheckAccounting();
}

}  // namespace pagoda
