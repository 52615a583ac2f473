#include "storage/device/device_slabs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {
constexpr int64_t kGranuleBytes = 4096;
}

DeviceSlabs::DeviceSlabs(int64_t chunk_count, int64_t chunk_bytes)
    : chunk_bytes_(chunk_bytes), chunks_(static_cast<size_t>(chunk_count)) {
  PAGODA_CHECK(chunk_bytes % kGranuleBytes == 0);
  usage_.capacity_bytes = chunk_count * chunk_bytes;
}

std::optional<SlabPlace> DeviceSlabs::TakeSlab(const ScopeId& scope, int64_t bytes) {
  PAGODA_CHECK(bytes > 0 && bytes % kGranuleBytes == 0);
  const auto it = open_chunks_.find(ClassKey{scope, bytes});
  if (it == open_chunks_.end()) return std::nullopt;
  // The lowest chunk first, so that the others may run empty.
  const uint32_t index = *it->second.begin();
  Chunk& chunk = chunks_[index];
  const uint32_t slot = chunk.free_slots.back();
  chunk.free_slots.pop_back();
  chunk.slots[slot].state = SlotState::kTaken;
  usage_.used_bytes += bytes;
  if (chunk.free_slots.empty()) {
    it->second.erase(index);
    if (it->second.empty()) open_chunks_.erase(it);
  }
  return SlabPlace{index, slot, slot * bytes, bytes, chunk.generation};
}

std::optional<DeviceSlabs::TakenChunk> DeviceSlabs::TakeChunk(const ScopeId& scope, int64_t bytes) {
  if (bytes > chunk_bytes_) return std::nullopt;
  std::optional<uint32_t> found;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.slab_bytes != 0 || !MayHave(chunk, scope)) continue;
    const bool same_scope = chunk.scope == scope;
    if (!found.has_value() || same_scope) found = i;
    if (same_scope) break;
  }
  if (!found.has_value()) return std::nullopt;
  Chunk& chunk = chunks_[*found];
  chunk.taker = scope;
  chunk.slab_bytes = bytes;
  chunk.closed = true;
  usage_.reserved_bytes += chunk_bytes_;
  const bool changes = chunk.scope != scope;
  return TakenChunk{*found, changes, changes && chunk.exported};
}

void DeviceSlabs::OpenChunk(uint32_t index) {
  Chunk& chunk = chunks_[index];
  PAGODA_CHECK(chunk.closed);
  chunk.closed = false;
  if (chunk.scope != chunk.taker) chunk.exported = false;
  chunk.scope = chunk.taker;
  const auto slot_count = static_cast<uint32_t>(chunk_bytes_ / chunk.slab_bytes);
  chunk.slots.assign(slot_count, Slot{});
  // The stack hands out the lowest slot first.
  for (uint32_t slot = slot_count; slot-- > 0;) chunk.free_slots.push_back(slot);
  open_chunks_[ClassKey{*chunk.scope, chunk.slab_bytes}].insert(index);
}

void DeviceSlabs::ReturnChunk(uint32_t index) {
  PAGODA_CHECK(chunks_[index].closed);
  chunks_[index].closed = false;
  Empty(index);
}

// The scope stays on record: its bytes do.
void DeviceSlabs::Empty(uint32_t index) {
  Chunk& chunk = chunks_[index];
  chunk.slab_bytes = 0;
  chunk.slots.clear();
  chunk.free_slots.clear();
  usage_.reserved_bytes -= chunk_bytes_;
}

void DeviceSlabs::Keep(const SlabPlace& place, const Fence& fence) {
  PAGODA_CHECK(IsTaken(place));
  std::vector<Fence>& fences = chunks_[place.chunk].slots[place.slot].fences;
  // A slab that is read again and again shall remember only who may still do so.
  std::erase_if(fences, [this](const Fence& kept) { return IsPassed(kept); });
  for (Fence& kept : fences) {
    if (kept.timeline != fence.timeline) continue;
    kept.value = std::max(kept.value, fence.value);
    return;
  }
  fences.push_back(fence);
}

bool DeviceSlabs::IsPassed(const Fence& fence) const {
  const auto it = timelines_.find(fence.timeline);
  return it == timelines_.end() || it->second.reached >= fence.value;
}

void DeviceSlabs::Free(const SlabPlace& place, std::vector<SlabPlace>& freed) {
  PAGODA_CHECK(IsTaken(place));
  Slot& slot = chunks_[place.chunk].slots[place.slot];
  usage_.used_bytes -= place.bytes;
  usage_.limbo_bytes += place.bytes;
  slot.state = SlotState::kLimbo;
  for (const Fence& fence : std::exchange(slot.fences, {})) {
    if (IsPassed(fence)) continue;
    timelines_.at(fence.timeline).waiting.emplace(fence.value, Waiting{place.chunk, place.slot});
    ++slot.open_fences;
  }
  if (slot.open_fences == 0) BecomeFree(place.chunk, place.slot, freed);
}

void DeviceSlabs::BecomeFree(uint32_t index, uint32_t slot, std::vector<SlabPlace>& freed) {
  Chunk& chunk = chunks_[index];
  const int64_t bytes = chunk.slab_bytes;
  freed.push_back({index, slot, slot * bytes, bytes, chunk.generation});
  ++chunk.generation;
  chunk.slots[slot].state = SlotState::kFree;
  chunk.free_slots.push_back(slot);
  usage_.limbo_bytes -= bytes;
  const ClassKey key{*chunk.scope, bytes};
  if (chunk.free_slots.size() < chunk.slots.size()) {
    open_chunks_[key].insert(index);
    return;
  }
  if (const auto it = open_chunks_.find(key); it != open_chunks_.end()) {
    it->second.erase(index);
    if (it->second.empty()) open_chunks_.erase(it);
  }
  Empty(index);
}

TimelineId DeviceSlabs::AddTimeline() {
  const TimelineId id{next_timeline_++};
  timelines_.emplace(id, Timeline{});
  return id;
}

void DeviceSlabs::Settle(const Waiting& waiting, std::vector<SlabPlace>& freed) {
  Slot& slot = chunks_[waiting.chunk].slots[waiting.slot];
  PAGODA_CHECK(slot.state == SlotState::kLimbo);
  if (--slot.open_fences == 0) BecomeFree(waiting.chunk, waiting.slot, freed);
}

void DeviceSlabs::Advance(TimelineId timeline, uint64_t value, std::vector<SlabPlace>& freed) {
  const auto it = timelines_.find(timeline);
  if (it == timelines_.end() || value <= it->second.reached) return;
  it->second.reached = value;
  auto& waiting = it->second.waiting;
  while (!waiting.empty() && waiting.begin()->first <= value) {
    const Waiting next = waiting.begin()->second;
    waiting.erase(waiting.begin());
    Settle(next, freed);
  }
}

void DeviceSlabs::EndTimeline(TimelineId timeline, std::vector<SlabPlace>& freed) {
  Advance(timeline, UINT64_MAX, freed);
  timelines_.erase(timeline);
  for (Chunk& chunk : chunks_) chunk.importers.erase(timeline);
}

void DeviceSlabs::AddImporter(const SlabPlace& place, TimelineId timeline, bool for_good) {
  PAGODA_CHECK(IsTaken(place));
  Chunk& chunk = chunks_[place.chunk];
  chunk.exported = true;
  chunk.bound |= for_good;
  if (timelines_.contains(timeline)) chunk.importers.insert(timeline);
}

bool DeviceSlabs::IsUnread(const SlabPlace& place) const {
  PAGODA_CHECK(IsTaken(place));
  const std::vector<Fence>& fences = chunks_[place.chunk].slots[place.slot].fences;
  return std::all_of(fences.begin(), fences.end(),
                     [this](const Fence& fence) { return IsPassed(fence); });
}

std::vector<std::optional<size_t>> DeviceSlabs::SlabsInTheWay(const ScopeId& scope) const {
  std::vector<std::optional<size_t>> counts;
  counts.reserve(chunks_.size());
  for (const Chunk& chunk : chunks_) {
    auto& count = counts.emplace_back();
    if (chunk.closed || !MayHave(chunk, scope)) continue;
    count = chunk.slots.size() - chunk.free_slots.size();
  }
  return counts;
}

// The generation of a taken slab may be older than its chunk's: other slabs have gone since.
bool DeviceSlabs::IsTaken(const SlabPlace& place) const {
  if (place.chunk >= chunks_.size()) return false;
  const Chunk& chunk = chunks_[place.chunk];
  return chunk.slab_bytes == place.bytes && place.slot < chunk.slots.size() &&
         chunk.slots[place.slot].state == SlotState::kTaken && place.generation <= chunk.generation;
}

absl::Status DeviceSlabs::CheckAccounting() const {
  DeviceUsage counted;
  counted.capacity_bytes = static_cast<int64_t>(chunks_.size()) * chunk_bytes_;
  int64_t open_fences = 0;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.slab_bytes != 0) counted.reserved_bytes += chunk_bytes_;
    size_t free_count = 0;
    for (const Slot& slot : chunk.slots) {
      if (slot.state == SlotState::kTaken) counted.used_bytes += chunk.slab_bytes;
      if (slot.state == SlotState::kLimbo) counted.limbo_bytes += chunk.slab_bytes;
      if (slot.state == SlotState::kFree) ++free_count;
      open_fences += slot.open_fences;
      if ((slot.state == SlotState::kLimbo) != (slot.open_fences > 0)) {
        return absl::InternalError(
            absl::StrFormat("device slabs: chunk %d: limbo without fence", i));
      }
    }
    const auto open =
        open_chunks_.find(ClassKey{chunk.scope.value_or(ScopeId{}), chunk.slab_bytes});
    const bool listed = open != open_chunks_.end() && open->second.contains(i);
    if (free_count != chunk.free_slots.size() || listed != (free_count > 0)) {
      return absl::InternalError(absl::StrFormat("device slabs: chunk %d: %d slots free, %d listed",
                                                 i, free_count, chunk.free_slots.size()));
    }
  }
  int64_t waiting = 0;
  for (const auto& [id, timeline] : timelines_) {
    waiting += static_cast<int64_t>(timeline.waiting.size());
  }
  if (waiting != open_fences || counted.used_bytes != usage_.used_bytes ||
      counted.limbo_bytes != usage_.limbo_bytes ||
      counted.reserved_bytes != usage_.reserved_bytes ||
      counted.capacity_bytes != usage_.capacity_bytes) {
    return absl::InternalError(absl::StrFormat(
        "device slabs: used %d, counted %d; limbo %d, counted %d; reserved %d, counted %d; fences "
        "%d, counted %d",
        usage_.used_bytes, counted.used_bytes, usage_.limbo_bytes, counted.limbo_bytes,
        usage_.reserved_bytes, counted.reserved_bytes, open_fences, waiting));
  }
  return absl::OkStatus();
}

}  // namespace pagoda
