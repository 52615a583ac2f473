// One chunk of the daemon's memory in this process, read-only for good (storage/host_tier.h).
//
// Threads    const methods from any thread
// Ownership  unmaps itself; whoever reads holds it
// Errors     DATA_LOSS    a file that is not what the daemon says it is, or may become shorter
//            UNAVAILABLE  the system refuses the map
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/shm_protocol.h"
#include "storage/base/bytes.h"
#include "storage/base/slab_generation.h"
#include "storage/base/unique_fd.h"

namespace pagoda::client {

class ShmMap {
 public:
  static absl::StatusOr<std::shared_ptr<const ShmMap>> Make(const UniqueFd& fd,
                                                            const shm::Memory& memory);
  ~ShmMap();
  ShmMap(const ShmMap&) = delete;
  ShmMap& operator=(const ShmMap&) = delete;

  // Bytes from an offset to the end of the pages; empty where no slab can be.
  ByteSpan From(uint64_t offset) const {
    if (offset % 4096 != 0 || offset >= memory_.chunk_bytes) return {};
    return ByteSpan(data_ + offset, memory_.chunk_bytes - offset);
  }
  // How often the slab there was given back. REQUIRES: From(offset) is not empty.
  uint64_t Generation(uint64_t offset) const {
    const auto at = static_cast<size_t>(
        GenerationOffset(static_cast<int64_t>(memory_.chunk_bytes), static_cast<int64_t>(offset)));
    // Read-only memory: a plain load, atomic where it is aligned.
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(data_ + at), __ATOMIC_ACQUIRE);
  }

 private:
  ShmMap(const std::byte* data, const shm::Memory& memory) : data_(data), memory_(memory) {}

  const std::byte* const data_;
  const shm::Memory memory_;
};
using ShmMapPtr = std::shared_ptr<const ShmMap>;

}  // namespace pagoda::client
