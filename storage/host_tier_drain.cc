// HostTier: emptying a sparse chunk, and counting everything again.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/host_tier.h"
#include "storage/policy/compaction.h"

namespace pagoda {

// ---- Draining -----------------------------------------------------------------------------------

std::optional<uint32_t> HostTier::PickChunkToDrain() const {
  std::vector<policy::ChunkFill> fills;
  absl::flat_hash_map<ClassKey, uint32_t> groups;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.slab_bytes == 0) continue;
    const auto group = static_cast<uint32_t>(groups.size());
    policy::ChunkFill fill;
    fill.chunk = i;
    fill.group = groups.try_emplace({chunk.scope, chunk.slab_bytes}, group).first->second;
    fill.slot_count = static_cast<uint32_t>(chunk.slots.size());
    fill.live_count = chunk.live_count();
    fill.slab_bytes = chunk.slab_bytes;
    // Staged and lingering slabs go by themselves; nobody can move them.
    fill.stuck =
        chunk.stuck || std::any_of(chunk.slots.begin(), chunk.slots.end(), [](const Slot& slot) {
          return slot.live && slot.use != SlabUse::kResident;
        });
    fills.push_back(fill);
  }
  return policy::PickChunkToEmpty(fills);
}

std::optional<ChunkDrain> HostTier::BeginDrain() {
  absl::MutexLock lock(&mutex_);
  if (draining_.has_value()) return std::nullopt;
  const std::optional<uint32_t> picked = PickChunkToDrain();
  if (!picked.has_value()) {
    for (Chunk& chunk : chunks_) chunk.stuck = false;  // all were tried: from the start next time
    return std::nullopt;
  }
  CloseChunk(*picked);
  draining_ = picked;
  ChunkDrain drain;
  drain.chunk = *picked;
  for (const Slot& slot : chunks_[*picked].slots) {
    if (slot.live) drain.owners.push_back(slot.owner);
  }
  std::sort(drain.owners.begin(), drain.owners.end());
  drain.owners.erase(std::unique(drain.owners.begin(), drain.owners.end()), drain.owners.end());
  return drain;
}

void HostTier::StopDraining() {
  const uint32_t index = *draining_;
  draining_.reset();
  chunks_[index].stuck = true;
  if (!chunks_[index].free_slots.empty()) OpenChunk(index);
}

void HostTier::EndDrain() {
  absl::MutexLock lock(&mutex_);
  if (draining_.has_value()) StopDraining();
}

int64_t HostTier::drained_chunk_count() const {
  absl::MutexLock lock(&mutex_);
  return drained_chunk_count_;
}

// ---- Counting again -----------------------------------------------------------------------------

absl::Status HostTier::CheckAccounting() const {
  absl::MutexLock lock(&mutex_);
  HostTierUsage all;
  absl::flat_hash_map<ScopeId, HostTierUsage> scopes;
  for (const Chunk& chunk : chunks_) {
    if (chunk.slab_bytes == 0) continue;
    for (HostTierUsage* usage : {&all, &scopes[chunk.scope]}) {
      usage->reserved_bytes += chunk_bytes_;
      for (const Slot& slot : chunk.slots) {
        if (!slot.live) continue;
        usage->used_bytes += chunk.slab_bytes;
        ++usage->slab_count;
        usage->bytes_by_use[static_cast<int>(slot.use)] += chunk.slab_bytes;
      }
    }
  }
  const auto differs = [](const HostTierUsage& a, const HostTierUsage& b) {
    return a.used_bytes != b.used_bytes || a.reserved_bytes != b.reserved_bytes ||
           a.slab_count != b.slab_count ||
           !std::equal(a.bytes_by_use, a.bytes_by_use + kSlabUseCount, b.bytes_by_use);
  };
  bool broken = differs(all, usage_) || scopes.size() != scopes_.size();
  for (const auto& [scope, usage] : scopes) {
    const auto counted = scopes_.find(scope);
    broken = broken || counted == scopes_.end() || differs(usage, counted->second);
  }
  if (!broken) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat(
      "host tier: %d bytes in %d slabs and %d scopes found, %d in %d and %d counted",
      all.used_bytes, all.slab_count, scopes.size(), usage_.used_bytes, usage_.slab_count,
      scopes_.size()));
}

}  // namespace pagoda
