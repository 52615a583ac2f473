#include "storage/host_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/page_header.h"
#include "storage/base/status_macros.h"
#include "storage/device/pretouch.h"

namespace pagoda {
namespace {

constexpr int64_t kChunkBytesMin = int64_t{1} << 20;
constexpr int64_t kChunkBytesLimit = int64_t{1} << 30;
constexpr int64_t kChunksWanted = 16;

absl::Status SystemError(absl::string_view call) {
  return absl::UnavailableError(absl::StrFormat("host tier: %s: %s", call, std::strerror(errno)));
}

}  // namespace

absl::Status HostTierOptions::Validate() const {
  if (chunk_bytes_max < kChunkBytesMin || chunk_bytes_max > kChunkBytesLimit ||
      !std::has_single_bit(static_cast<uint64_t>(chunk_bytes_max))) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "host chunk_bytes_max is %d; must be a power of two from 1 MiB to 1 GiB", chunk_bytes_max));
  }
  if (touch_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("host touch_threads is %d; must not be negative", touch_threads));
  }
  if (capacity_bytes < kChunkBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("host capacity_bytes is %d; must be at least 1 MiB", capacity_bytes));
  }
  return absl::OkStatus();
}

int64_t HostTierOptions::chunk_bytes() const {
  const auto share = static_cast<uint64_t>(capacity_bytes / kChunksWanted);
  const auto wanted = static_cast<int64_t>(std::bit_floor(share));
  return std::min(chunk_bytes_max, std::max(kChunkBytesMin, wanted));
}

Slab& Slab::operator=(Slab&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  tier_ = std::exchange(other.tier_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  chunk_ = other.chunk_;
  slot_ = other.slot_;
  return *this;
}

void Slab::Reset() {
  if (data_ == nullptr) return;
  tier_->Free(*this);
  tier_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

absl::StatusOr<std::shared_ptr<HostTier>> HostTier::Create(const HostTierOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  const int64_t chunk_bytes = options.chunk_bytes();
  const int64_t chunk_count = options.capacity_bytes / chunk_bytes;
  std::shared_ptr<HostTier> tier(
      new HostTier(chunk_count * chunk_bytes, chunk_bytes, options.huge_pages));
  std::vector<MutableByteSpan> to_touch;
  for (int64_t i = 0; i < chunk_count; ++i) {
    auto mapping = tier->MapFresh();
    if (!mapping.ok()) return mapping.status();
    to_touch.emplace_back(mapping->data, tier->memfd_bytes());
    absl::MutexLock lock(&tier->mutex_);
    tier->chunks_.emplace_back().mapping = *mapping;
    // The stack hands out the lowest chunk first.
    tier->free_chunks_.push_back(static_cast<uint32_t>(chunk_count - 1 - i));
  }
  if (options.touch_threads > 0) {
    PAGODA_RETURN_IF_ERROR(Pretouch(to_touch, {.threads = options.touch_threads}));
  }
  return tier;
}

HostTier::HostTier(int64_t capacity_bytes, int64_t chunk_bytes, bool huge_pages)
    : capacity_bytes_(capacity_bytes), chunk_bytes_(chunk_bytes), huge_pages_(huge_pages) {
  usage_.capacity_bytes = capacity_bytes;
}

HostTier::~HostTier() {
  std::vector<Chunk> chunks;
  {
    absl::MutexLock lock(&mutex_);
    PAGODA_CHECK(usage_.slab_count == 0);
    chunks.swap(chunks_);
  }
  for (const Chunk& chunk : chunks) Unmap(chunk.mapping);
}

int64_t HostTier::memfd_bytes() const {
  return AlignUp(GenerationOffset(chunk_bytes_, chunk_bytes_), kSegmentAlignBytes);
}

std::atomic_ref<uint64_t> HostTier::Generation(const Mapping& mapping, int64_t chunk_bytes,
                                               int64_t slab_offset) {
  return std::atomic_ref<uint64_t>(
      *reinterpret_cast<uint64_t*>(mapping.data + GenerationOffset(chunk_bytes, slab_offset)));
}

absl::StatusOr<HostTier::Mapping> HostTier::MapFresh() {
  Mapping mapping;
  mapping.fd = memfd_create("pagoda-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (mapping.fd < 0) return SystemError("memfd_create");
  if (ftruncate(mapping.fd, memfd_bytes()) != 0) {
    const absl::Status status = SystemError("ftruncate");
    close(mapping.fd);
    return status;
  }
  void* data =
      mmap(nullptr, memfd_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, mapping.fd, /*offset=*/0);
  if (data == MAP_FAILED) {
    const absl::Status status = SystemError("mmap");
    close(mapping.fd);
    return status;
  }
  mapping.data = static_cast<std::byte*>(data);
  // Our own writable map exists; from here on nobody makes another, whoever gets the descriptor.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(mapping.fd, F_ADD_SEALS, seals) != 0) {
    const absl::Status status = SystemError("fcntl F_ADD_SEALS");
    Unmap(mapping);
    return status;
  }
  // Where the system has none, its pages are as good.
  if (huge_pages_) {
    (void)AdviseHugePages({mapping.data, static_cast<size_t>(memfd_bytes())});
  }
  absl::MutexLock lock(&mutex_);
  mapping.id = next_memfd_id_++;
  return mapping;
}

void HostTier::Unmap(const Mapping& mapping) const {
  std::function<void(const std::byte*)> listener;
  {
    absl::MutexLock lock(&mutex_);
    listener = on_unmap_;
  }
  if (listener) listener(mapping.data);
  munmap(mapping.data, memfd_bytes());
  close(mapping.fd);
}

void HostTier::Count(const Chunk& chunk, SlabUse use, int sign) {
  for (HostTierUsage* usage : {&usage_, &scopes_[chunk.scope]}) {
    usage->used_bytes += sign * chunk.slab_bytes;
    usage->slab_count += sign;
    usage->bytes_by_use[static_cast<int>(use)] += sign * chunk.slab_bytes;
  }
}

void HostTier::OpenChunk(uint32_t index) {
  const Chunk& chunk = chunks_[index];
  if (draining_ != index) open_chunks_[{chunk.scope, chunk.slab_bytes}].insert(index);
}

void HostTier::CloseChunk(uint32_t index) {
  const Chunk& chunk = chunks_[index];
  const auto open = open_chunks_.find({chunk.scope, chunk.slab_bytes});
  if (open == open_chunks_.end()) return;
  open->second.erase(index);
  if (open->second.empty()) open_chunks_.erase(open);
}

bool HostTier::TakeSlot(const ClassKey& key, Slab& slab) {
  const auto open = open_chunks_.find(key);
  if (open == open_chunks_.end()) return false;
  const uint32_t index = *open->second.begin();
  Chunk& chunk = chunks_[index];
  PAGODA_CHECK(!chunk.free_slots.empty());
  slab.tier_ = this;
  slab.chunk_ = index;
  slab.slot_ = chunk.free_slots.back();
  slab.bytes_ = key.slab_bytes;
  slab.data_ = chunk.mapping.data + slab.slot_ * key.slab_bytes;
  chunk.slots[slab.slot_] = {0, SlabUse::kStaged, true};
  chunk.free_slots.pop_back();
  if (chunk.free_slots.empty()) CloseChunk(index);
  Count(chunk, SlabUse::kStaged, +1);
  return true;
}

bool HostTier::TakeFreeChunk(const ScopeId& scope, uint32_t& chunk) {
  if (free_chunks_.empty()) return false;
  // One that this scope had, or that nobody had, needs no new memfd.
  auto best = free_chunks_.end();
  for (auto it = free_chunks_.rbegin(); it != free_chunks_.rend(); ++it) {
    const Chunk& candidate = chunks_[*it];
    if (!candidate.touched || candidate.scope == scope) {
      best = std::prev(it.base());
      break;
    }
  }
  if (best == free_chunks_.end()) best = std::prev(free_chunks_.end());
  chunk = *best;
  free_chunks_.erase(best);
  return true;
}

void HostTier::CutChunk(uint32_t index, const ClassKey& key) {
  Chunk& chunk = chunks_[index];
  chunk.touched = true;
  chunk.scope = key.scope;
  chunk.slab_bytes = key.slab_bytes;
  chunk.stuck = false;
  const auto slot_count = static_cast<uint32_t>(chunk_bytes_ / key.slab_bytes);
  chunk.slots.assign(slot_count, Slot{});
  chunk.free_slots.resize(slot_count);
  for (uint32_t i = 0; i < slot_count; ++i) chunk.free_slots[i] = slot_count - 1 - i;
  OpenChunk(index);
  usage_.reserved_bytes += chunk_bytes_;
  scopes_[key.scope].reserved_bytes += chunk_bytes_;
}

absl::Status HostTier::Exhausted(int64_t asked_bytes) const {
  return absl::ResourceExhaustedError(
      absl::StrFormat("host tier: asked %d bytes; %d of %d free, %d of it in empty chunks",
                      asked_bytes, capacity_bytes_ - usage_.used_bytes, capacity_bytes_,
                      static_cast<int64_t>(free_chunks_.size()) * chunk_bytes_));
}

absl::StatusOr<Slab> HostTier::Allocate(const ScopeId& scope, int64_t bytes) {
  return Allocate(scope, bytes, SlabRoom::kAnywhere);
}

absl::StatusOr<Slab> HostTier::Allocate(const ScopeId& scope, int64_t bytes, SlabRoom room) {
  if (bytes <= 0 || bytes > chunk_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("host tier: asked a segment of %d bytes; from 1 to %d (one chunk) fit",
                        bytes, chunk_bytes_));
  }
  const ClassKey key{scope, AlignUp(bytes, kSegmentAlignBytes)};
  Slab slab;
  uint32_t index = 0;
  Mapping replaced;
  {
    absl::MutexLock lock(&mutex_);
    if (TakeSlot(key, slab)) return slab;
    if (room == SlabRoom::kHolesOnly) return Exhausted(key.slab_bytes);
    if (!TakeFreeChunk(scope, index)) {
      // Rather its holes than a refusal.
      if (draining_.has_value()) StopDraining();
      if (TakeSlot(key, slab)) return slab;
      return Exhausted(key.slab_bytes);
    }
    const Chunk& chunk = chunks_[index];
    if (!chunk.touched || chunk.scope == scope) {
      CutChunk(index, key);
      PAGODA_CHECK(TakeSlot(key, slab));
      return slab;
    }
    replaced = chunk.mapping;
  }
  // The chunk was another scope's: it gets a fresh memfd. It is in no list meanwhile.
  auto fresh = MapFresh();
  {
    absl::MutexLock lock(&mutex_);
    if (!fresh.ok()) {
      free_chunks_.push_back(index);
      return fresh.status();
    }
    chunks_[index].mapping = *fresh;
    CutChunk(index, key);
    PAGODA_CHECK(TakeSlot(key, slab));
  }
  Unmap(replaced);  // now that nobody finds its descriptor any more
  return slab;
}

absl::StatusOr<std::vector<Slab>> HostTier::AllocateAll(const ScopeId& scope,
                                                        absl::Span<const int64_t> sizes,
                                                        SlabRoom room) {
  std::vector<Slab> slabs;
  slabs.reserve(sizes.size());
  for (const int64_t bytes : sizes) {
    auto slab = Allocate(scope, bytes, room);
    if (!slab.ok()) return slab.status();  // the others free themselves
    slabs.push_back(*std::move(slab));
  }
  return slabs;
}

void HostTier::Free(Slab& slab) {
  absl::MutexLock lock(&mutex_);
  Chunk& chunk = chunks_[slab.chunk_];
  PAGODA_CHECK(chunk.slab_bytes == slab.bytes_);
  PAGODA_CHECK(chunk.slots[slab.slot_].live);
  Count(chunk, chunk.slots[slab.slot_].use, -1);
  chunk.slots[slab.slot_].live = false;
  // Before anybody can write there again: whoever still reads it finds out. Fills of the slab come
  // after this in every reader's order, because they follow a lock that follows this one.
  Generation(chunk.mapping, chunk_bytes_, slab.slot_ * slab.bytes_)
      .fetch_add(1, std::memory_order_seq_cst);
  chunk.free_slots.push_back(slab.slot_);
  chunk.stuck = false;
  if (chunk.live_count() > 0) {
    OpenChunk(slab.chunk_);
    return;
  }
  CloseChunk(slab.chunk_);
  if (draining_ == slab.chunk_) {
    draining_.reset();
    ++drained_chunk_count_;
  }
  HostTierUsage& scope = scopes_[chunk.scope];
  usage_.reserved_bytes -= chunk_bytes_;
  scope.reserved_bytes -= chunk_bytes_;
  if (scope.reserved_bytes == 0) scopes_.erase(chunk.scope);
  chunk.slab_bytes = 0;
  chunk.slots.clear();
  chunk.free_slots.clear();
  free_chunks_.push_back(slab.chunk_);
}

void HostTier::SetUse(absl::Span<const std::shared_ptr<const Slab>> slabs, SlabUse use,
                      SlabOwner owner) {
  absl::MutexLock lock(&mutex_);
  for (const auto& slab : slabs) {
    const Chunk& chunk = chunks_[slab->chunk_];
    Slot& slot = chunks_[slab->chunk_].slots[slab->slot_];
    Count(chunk, slot.use, -1);
    Count(chunk, use, +1);
    slot.use = use;
    slot.owner = owner;
  }
}

SlabLocation HostTier::LocationOf(const Slab& slab) const {
  const Chunk& chunk = chunks_[slab.chunk_];
  const int64_t offset = slab.slot_ * slab.bytes_;
  const auto generation = Generation(chunk.mapping, chunk_bytes_, offset);
  return {chunk.mapping.id, offset, generation.load(std::memory_order_relaxed)};
}

SlabLocation HostTier::Locate(const Slab& slab) const {
  absl::MutexLock lock(&mutex_);
  return LocationOf(slab);
}

void HostTier::LocateAll(absl::Span<const std::shared_ptr<const Slab>> slabs,
                         std::vector<SlabLocation>& locations) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& slab : slabs) locations.push_back(LocationOf(*slab));
}

void HostTier::ChunksOf(absl::Span<const std::shared_ptr<const Slab>> slabs,
                        std::vector<MutableByteSpan>& chunks) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& slab : slabs) {
    chunks.emplace_back(chunks_[slab->chunk_].mapping.data, memfd_bytes());
  }
}

void HostTier::OnUnmap(std::function<void(const std::byte*)> listener) {
  absl::MutexLock lock(&mutex_);
  on_unmap_ = std::move(listener);
}

absl::StatusOr<SharedChunk> HostTier::Share(uint64_t memfd_id) const {
  absl::MutexLock lock(&mutex_);
  for (const Chunk& chunk : chunks_) {
    if (chunk.mapping.id != memfd_id) continue;
    SharedChunk shared{UniqueFd(fcntl(chunk.mapping.fd, F_DUPFD_CLOEXEC, 0)), memfd_bytes(),
                       chunk_bytes_};
    if (!shared.fd.valid()) return SystemError("fcntl F_DUPFD_CLOEXEC");
    return shared;
  }
  return absl::NotFoundError(absl::StrFormat("host tier: no chunk has memfd %d", memfd_id));
}

HostTierUsage HostTier::usage() const {
  absl::MutexLock lock(&mutex_);
  return usage_;
}

HostTierUsage HostTier::scope_usage(const ScopeId& scope) const {
  absl::MutexLock lock(&mutex_);
  const auto it = scopes_.find(scope);
  HostTierUsage usage = it == scopes_.end() ? HostTierUsage{} : it->second;
  usage.capacity_bytes = capacity_bytes_;
  return usage;
}

}  // namespace pagoda
