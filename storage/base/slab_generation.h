// Where the generation of a slab lies in its memfd: behind the chunk's bytes, one u64 for each 4096
// of them. The daemon counts that of a slab's first bytes up when it gives the slab back; who maps
// the memory compares it after its last read (storage/host_tier.h, client/shm_channel.h).
#pragma once

#include <cstdint>

namespace pagoda {

constexpr int64_t GenerationOffset(int64_t chunk_bytes, int64_t slab_offset) {
  return chunk_bytes + slab_offset / 4096 * static_cast<int64_t>(sizeof(uint64_t));
}

}  // namespace pagoda
