// Host memory for pages: one budget taken at start, cut in chunks, chunks cut in slabs. It hands
// out slabs and counts them; which page lies where is the store's business.
//
//   budget = chunk | chunk | ...             chunk: one sealed memfd, mapped once, of one scope at
//                                            a time
//   chunk  = slab | slab | ... | rest        slabs of one size class (any multiple of 4096, on
//                                            demand)
//   memfd  = chunk | generations             one u64 for each 4096 bytes of the chunk; that of a
//                                            slab's first 4096 counts how often it was given back
//
// Who maps a memfd reads a slab's generation after its last byte: when it is still the one that it
// was told, all bytes were those of the page (a sequence lock whose writer is the free list).
//
// A worker may map the chunks of the scopes it may read, so a chunk never holds two scopes: before
// another scope gets it, it is replaced by a fresh memfd. Maps that others hold of the old one
// survive and see only the old scope's bytes. An empty chunk returns to the free list.
//
// A chunk that is mostly holes can be drained: it hands out no more slabs, its pages are copied
// into other chunks by whoever owns them, and it is free when the last slab in it goes.
//
// Units      bytes
// Threads    every method from any thread
// Ownership  a Slab frees itself and must not outlive its tier; pages therefore hold the tier
// Errors     RESOURCE_EXHAUSTED  no slab free; states what was asked and what is free
//            INVALID_ARGUMENT    larger than a chunk, or not positive
//            UNAVAILABLE         the system refuses the memory; names the call and errno
// Limits     chunk 1 MiB to 64 MiB, so that a budget has at least 16 chunks where it can
// Cost       Allocate and Free: O(log chunks), no system call unless a chunk changes its scope;
//            with touch_threads Create makes all pages: 64 GiB at 2 to 10 GB/s;
//            beside the budget 0.2 % of memory for the generations, and memfds that were replaced
//            as long as a client maps them
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "storage/base/bytes.h"
#include "storage/base/scope.h"
#include "storage/base/slab_generation.h"
#include "storage/base/unique_fd.h"

namespace pagoda {

struct HostTierOptions {
  int64_t capacity_bytes = int64_t{1} << 30;    // rounded down to whole chunks; at least one chunk
  int64_t chunk_bytes_max = int64_t{64} << 20;  // a power of two; also the largest segment
  // Pages are made as they are first written (0), or all at the start by so many threads: for a
  // device, which makes the pages of what it registers one after the other.
  int touch_threads = 0;
  bool huge_pages = false;  // asks for transparent ones; the system's shmem_enabled must allow it
  absl::Status Validate() const;
  // The chunk size used: the largest power of two that gives 16 chunks, within [1 MiB, max].
  int64_t chunk_bytes() const;
};

// What a live slab is for: exactly one of these at any moment.
enum class SlabUse : uint8_t {
  kStaged = 0,     // being written, or complete and not visible yet
  kResident = 1,   // of a page that can be looked up
  kLingering = 2,  // of a page that was dropped or replaced, and is still read
};
constexpr int kSlabUseCount = 3;

struct HostTierUsage {
  int64_t capacity_bytes = 0;
  int64_t used_bytes = 0;      // sum of live slabs
  int64_t reserved_bytes = 0;  // chunks taken by some scope; used_bytes <= reserved_bytes
  int64_t slab_count = 0;
  int64_t bytes_by_use[kSlabUseCount] = {};  // together used_bytes

  int64_t bytes_of(SlabUse use) const { return bytes_by_use[static_cast<int>(use)]; }
};

// Who holds a resident slab: a number that means something to the store alone.
using SlabOwner = uint32_t;

// Where AllocateAll may look.
enum class SlabRoom : uint8_t {
  kAnywhere = 0,
  kHolesOnly = 1,  // in chunks that the scope has for this size already
};

// A chunk being emptied.
struct ChunkDrain {
  uint32_t chunk = 0;
  std::vector<SlabOwner> owners;  // of its resident slabs, each once
};

class HostTier;

// One live slab. Move-only; its destruction gives the bytes back. The bytes are not cleared: who
// fills a slab clears what it does not write.
class Slab {
 public:
  Slab() = default;
  Slab(Slab&& other) noexcept { *this = std::move(other); }
  Slab& operator=(Slab&& other) noexcept;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() { Reset(); }

  MutableByteSpan bytes() const { return MutableByteSpan(data_, bytes_); }
  int64_t size() const { return bytes_; }
  bool empty() const { return data_ == nullptr; }
  uint32_t chunk() const { return chunk_; }
  void Reset();

 private:
  friend class HostTier;
  HostTier* tier_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  uint32_t chunk_ = 0;
  uint32_t slot_ = 0;
};

// Where a slab lies for a process that maps the chunk; good while the slab lives.
struct SlabLocation {
  uint64_t memfd_id = 0;  // never reused: a client keeps its maps by this id
  int64_t offset = 0;     // of the slab in the memfd
  uint64_t generation = 0;
};

// A memfd for a process that may read its scope.
struct SharedChunk {
  UniqueFd fd;
  int64_t memfd_bytes = 0;
  int64_t chunk_bytes = 0;  // where the generations begin
};

class HostTier {
 public:
  static absl::StatusOr<std::shared_ptr<HostTier>> Create(const HostTierOptions& options);
  ~HostTier();
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  // A slab of exactly `bytes`, rounded up to a multiple of 4096.
  absl::StatusOr<Slab> Allocate(const ScopeId& scope, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // One slab for each size, all or none.
  absl::StatusOr<std::vector<Slab>> AllocateAll(const ScopeId& scope,
                                                absl::Span<const int64_t> sizes,
                                                SlabRoom room = SlabRoom::kAnywhere)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A slab is staged when it is allocated. `owner` counts for resident ones.
  void SetUse(absl::Span<const std::shared_ptr<const Slab>> slabs, SlabUse use, SlabOwner owner)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Begins to drain the chunk that policy/compaction.h picks; one at a time. None: nothing to win,
  // or a drain is under way.
  std::optional<ChunkDrain> BeginDrain() ABSL_LOCKS_EXCLUDED(mutex_);
  // If the chunk has not run empty, it hands out slabs again, and is not picked until one of its
  // slabs has gone or all others were tried.
  void EndDrain() ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t drained_chunk_count() const ABSL_LOCKS_EXCLUDED(mutex_);  // that ran empty, since start

  // Recounts everything. INTERNAL names what does not add up. Cost: O(slabs).
  absl::Status CheckAccounting() const ABSL_LOCKS_EXCLUDED(mutex_);

  SlabLocation Locate(const Slab& slab) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Appends one location for each slab, in order.
  void LocateAll(absl::Span<const std::shared_ptr<const Slab>> slabs,
                 std::vector<SlabLocation>& locations) const ABSL_LOCKS_EXCLUDED(mutex_);
  // A descriptor of its own. NOT_FOUND: the chunk was given another memfd since.
  absl::StatusOr<SharedChunk> Share(uint64_t memfd_id) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Appends the chunk of each slab, whole: what a device registers.
  void ChunksOf(absl::Span<const std::shared_ptr<const Slab>> slabs,
                std::vector<MutableByteSpan>& chunks) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Called, without a lock, with the begin of each chunk before its memory goes. One listener;
  // empty for none.
  void OnUnmap(std::function<void(const std::byte*)> listener) ABSL_LOCKS_EXCLUDED(mutex_);
  HostTierUsage usage() const ABSL_LOCKS_EXCLUDED(mutex_);
  HostTierUsage scope_usage(const ScopeId& scope) const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }

 private:
  friend class Slab;

  struct Mapping {
    int fd = -1;
    std::byte* data = nullptr;
    uint64_t id = 0;
  };
  struct Slot {
    SlabOwner owner = 0;
    SlabUse use = SlabUse::kStaged;
    bool live = false;
  };
  struct Chunk {
    Mapping mapping;
    bool touched = false;    // some scope has owned this memfd
    ScopeId scope;           // of the last owner while touched
    int64_t slab_bytes = 0;  // 0: the chunk is free
    std::vector<Slot> slots;
    std::vector<uint32_t> free_slots;  // a stack
    bool stuck = false;                // was drained in vain

    uint32_t live_count() const { return static_cast<uint32_t>(slots.size() - free_slots.size()); }
  };
  struct ClassKey {
    ScopeId scope;
    int64_t slab_bytes;
    bool operator==(const ClassKey&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const ClassKey& k) {
      return H::combine(std::move(h), k.scope, k.slab_bytes);
    }
  };

  HostTier(int64_t capacity_bytes, int64_t chunk_bytes, bool huge_pages);
  int64_t memfd_bytes() const;
  // Of the slab at this offset; written under the lock, read by whoever maps it.
  static std::atomic_ref<uint64_t> Generation(const Mapping& mapping, int64_t chunk_bytes,
                                              int64_t slab_offset);
  absl::StatusOr<Mapping> MapFresh();
  void Unmap(const Mapping& mapping) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Slab> Allocate(const ScopeId& scope, int64_t bytes, SlabRoom room)
      ABSL_LOCKS_EXCLUDED(mutex_);
  SlabLocation LocationOf(const Slab& slab) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeSlot(const ClassKey& key, Slab& slab) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(const Chunk& chunk, SlabUse use, int sign) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OpenChunk(uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseChunk(uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeFreeChunk(const ScopeId& scope, uint32_t& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutChunk(uint32_t chunk, const ClassKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopDraining() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<uint32_t> PickChunkToDrain() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Exhausted(int64_t asked_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(Slab& slab) ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const int64_t capacity_bytes_;
  const int64_t chunk_bytes_;
  const bool huge_pages_;

  // Guarded by mutex_. No memory is mapped or unmapped while it is held.
  mutable absl::Mutex mutex_;
  std::vector<Chunk> chunks_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_chunks_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint32_t> draining_ ABSL_GUARDED_BY(mutex_);
  int64_t drained_chunk_count_ ABSL_GUARDED_BY(mutex_) = 0;
  // Chunks with a free slot, but for the one that is drained. The lowest is used first, so that the
  // others may run empty.
  absl::flat_hash_map<ClassKey, absl::btree_set<uint32_t>> open_chunks_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ScopeId, HostTierUsage> scopes_ ABSL_GUARDED_BY(mutex_);
  HostTierUsage usage_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_memfd_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::function<void(const std::byte*)> on_unmap_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda
