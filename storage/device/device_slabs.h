// Which parts of device memory are free, taken, or given back and still read. Pure: chunks and
// offsets, no device and no clock; device_pool.h joins it with memory.
//
//   chunk = slab | slab | ... | rest    slabs of one size (any multiple of 4096) and one scope
//
//   free --TakeSlab--> taken --Free--> limbo --all fences passed--> free
//                                      (no step of its own where none is open)
//
// A chunk that importers map stays with its scope until the last of them has ended, which bounds
// what is held for them. Another scope gets it only then, and never the memory that others had a
// handle of: they may have passed it on to a process that lives. Whoever gets a chunk gets it
// cleared.
//
// Units    bytes
// Threads  one at a time
// Limits   slabs are at most a chunk; what does not fit is answered by nothing, not by an error
// Cost     TakeSlab, Free: O(log chunks); TakeChunk: O(chunks); Advance: O(slabs that become free)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "storage/base/scope.h"
#include "storage/device/fence.h"

namespace pagoda {

// A slab while its generation is that of its place.
struct SlabPlace {
  uint32_t chunk = 0;
  uint32_t slot = 0;
  int64_t offset = 0;  // in the chunk
  int64_t bytes = 0;
  uint64_t generation = 0;
};

struct DeviceUsage {
  int64_t capacity_bytes = 0;
  int64_t used_bytes = 0;      // taken
  int64_t limbo_bytes = 0;     // given back, and waited for
  int64_t reserved_bytes = 0;  // chunks that hold either; used + limbo <= reserved
};

class DeviceSlabs {
 public:
  DeviceSlabs(int64_t chunk_count, int64_t chunk_bytes);

  // A free slab of a chunk that the scope has for this size. REQUIRES: bytes a multiple of 4096.
  std::optional<SlabPlace> TakeSlab(const ScopeId& scope, int64_t bytes);

  struct TakenChunk {
    uint32_t chunk = 0;
    bool clear = false;    // it may hold bytes that are not this scope's
    bool replace = false;  // others may map it: the new scope gets other memory
  };
  // A chunk for slabs of this size, closed until OpenChunk; or back by ReturnChunk, as it was.
  std::optional<TakenChunk> TakeChunk(const ScopeId& scope, int64_t bytes);
  void OpenChunk(uint32_t chunk);
  void ReturnChunk(uint32_t chunk);

  // The place is not free again before this fence is passed; of each timeline the last counts.
  // REQUIRES: the place is taken.
  void Keep(const SlabPlace& place, const Fence& fence);
  // What became free is appended to `freed`. REQUIRES: the place is taken.
  void Free(const SlabPlace& place, std::vector<SlabPlace>& freed);

  TimelineId AddTimeline();
  // Values below an earlier one are of no effect; so are timelines that ended.
  void Advance(TimelineId timeline, uint64_t value, std::vector<SlabPlace>& freed);
  void EndTimeline(TimelineId timeline, std::vector<SlabPlace>& freed);

  // The timeline's process maps the chunk of this slab; `for_good`: in a way that does not let the
  // chunk be replaced, so that it stays with its scope. REQUIRES: the place is taken.
  void AddImporter(const SlabPlace& place, TimelineId timeline, bool for_good);

  DeviceUsage usage() const { return usage_; }
  // For tests. REQUIRES: the place is taken.
  size_t FenceCount(const SlabPlace& place) const {
    return chunks_[place.chunk].slots[place.slot].fences.size();
  }
  size_t timeline_count() const { return timelines_.size(); }
  bool IsTaken(const SlabPlace& place) const;
  // Whether it would be free at once when it is given back. REQUIRES: the place is taken.
  bool IsUnread(const SlabPlace& place) const;
  // For each chunk: how many of its slabs keep this scope from taking it. Empty: more than that
  // does.
  std::vector<std::optional<size_t>> SlabsInTheWay(const ScopeId& scope) const;
  // Counts everything again. INTERNAL names what does not add up.
  absl::Status CheckAccounting() const;

 private:
  enum class SlotState : uint8_t { kFree, kTaken, kLimbo };
  struct Slot {
    SlotState state = SlotState::kFree;
    uint32_t open_fences = 0;   // in limbo
    std::vector<Fence> fences;  // while taken
  };
  struct Chunk {
    std::optional<ScopeId> scope;  // whose bytes it holds; empty: nobody's
    ScopeId taker;                 // while closed
    int64_t slab_bytes = 0;        // 0: no slab in it
    bool closed = false;           // taken, not open yet
    bool exported = false;         // others had a handle of it
    bool bound = false;            // in a way that keeps it with its scope
    uint64_t generation = 0;       // grows with everything that becomes free in it
    std::vector<Slot> slots;
    std::vector<uint32_t> free_slots;  // a stack
    std::set<TimelineId> importers;
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
  struct Waiting {
    uint32_t chunk;
    uint32_t slot;
  };
  struct Timeline {
    uint64_t reached = 0;
    std::multimap<uint64_t, Waiting> waiting;  // by the value that is waited for
  };

  static bool MayHave(const Chunk& chunk, const ScopeId& scope) {
    return chunk.scope == scope || (chunk.importers.empty() && !chunk.bound);
  }
  bool IsPassed(const Fence& fence) const;
  void BecomeFree(uint32_t chunk, uint32_t slot, std::vector<SlabPlace>& freed);
  void Settle(const Waiting& waiting, std::vector<SlabPlace>& freed);
  void Empty(uint32_t chunk);

  const int64_t chunk_bytes_;
  std::vector<Chunk> chunks_;
  absl::flat_hash_map<ClassKey, absl::btree_set<uint32_t>> open_chunks_;  // with a free slot
  std::map<TimelineId, Timeline> timelines_;
  uint64_t next_timeline_ = 1;
  DeviceUsage usage_;
};

}  // namespace pagoda
