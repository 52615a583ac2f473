#include "storage/policy/compaction.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"

namespace pagoda::policy {

std::optional<uint32_t> PickChunkToEmpty(absl::Span<const ChunkFill> chunks) {
  absl::flat_hash_map<uint32_t, int64_t> holes;  // by group
  for (const ChunkFill& chunk : chunks) {
    holes[chunk.group] += chunk.slot_count - chunk.live_count;
  }
  const ChunkFill* best = nullptr;
  const auto cost = [](const ChunkFill& c) { return c.live_count * c.slab_bytes; };
  for (const ChunkFill& chunk : chunks) {
    const int64_t elsewhere = holes[chunk.group] - (chunk.slot_count - chunk.live_count);
    if (chunk.stuck || chunk.live_count > elsewhere) continue;
    if (best == nullptr || cost(chunk) < cost(*best) ||
        (cost(chunk) == cost(*best) && chunk.chunk > best->chunk)) {
      best = &chunk;
    }
  }
  return best == nullptr ? std::nullopt : std::optional<uint32_t>(best->chunk);
}

bool IsFragmented(int64_t used_bytes, int64_t reserved_bytes, int64_t capacity_bytes,
                  int64_t chunk_bytes, const Watermarks& marks) {
  return marks.ExcessBytes(reserved_bytes, capacity_bytes) > 0 &&
         reserved_bytes - used_bytes >= chunk_bytes;
}

int64_t MoveBudget::Available(absl::Duration now) {
  if (last_.has_value() && now > *last_) {
    const auto bytes_per_second = static_cast<double>(bytes_per_second_);
    available_bytes_ =
        std::min(bytes_per_second,
                 available_bytes_ + absl::ToDoubleSeconds(now - *last_) * bytes_per_second);
  }
  last_ = last_.has_value() ? std::max(*last_, now) : now;
  return static_cast<int64_t>(std::floor(available_bytes_));
}

}  // namespace pagoda::policy
