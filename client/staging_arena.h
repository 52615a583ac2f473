// Which parts of the staging area are free: offsets, no memory. First fit from the front, so that a
// light load touches, and keeps in memory, only the front of the area.
//
// Units    bytes; every range starts at a multiple of 64 and is rounded up to one
// Threads  one at a time
// Cost     O(free ranges)
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace pagoda::client {

class StagingArena {
 public:
  explicit StagingArena(int64_t bytes);
  // The offset of a range of so many bytes; nothing when no free range is that long.
  // REQUIRES: bytes > 0.
  std::optional<int64_t> Take(int64_t bytes);
  // REQUIRES: as it was taken.
  void Return(int64_t offset, int64_t bytes);
  int64_t free_bytes() const { return free_bytes_; }

 private:
  std::map<int64_t, int64_t> free_;  // offset to bytes; never two that touch
  int64_t free_bytes_;
};

}  // namespace pagoda::client
