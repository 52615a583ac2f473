// Which chunk of host memory to empty next by moving its slabs into the holes of its neighbours,
// when to begin, and how fast. Pure numbers.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/policy/watermarks.h"

namespace pagoda::policy {

// One chunk that is in use. Chunks of one group (scope and size class) can take each other's slabs.
struct ChunkFill {
  uint32_t chunk = 0;
  uint32_t group = 0;
  uint32_t slot_count = 0;
  uint32_t live_count = 0;  // slots that hold a slab
  int64_t slab_bytes = 0;
  bool stuck = false;  // has slabs that cannot be moved now
};

// The chunk with the fewest bytes to move, of those whose slabs all fit into the holes of other
// chunks of their group; the highest of equals. None: nothing can be won.
std::optional<uint32_t> PickChunkToEmpty(absl::Span<const ChunkFill> chunks);

// True when holes are worth filling: so few chunks are left that `marks` call the tier full, though
// the slabs in them do not fill it, and the holes make up a chunk at least.
bool IsFragmented(int64_t used_bytes, int64_t reserved_bytes, int64_t capacity_bytes,
                  int64_t chunk_bytes, const Watermarks& marks);

// At most so many bytes a second, and at most one second's worth at once.
class MoveBudget {
 public:
  explicit MoveBudget(int64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  // What may be moved at `now`; time never runs backwards.
  int64_t Available(absl::Duration now);
  void Spend(int64_t bytes) {
    available_bytes_ -= static_cast<double>(bytes);
  }  // may go below 0: paid later

 private:
  const int64_t bytes_per_second_;
  double available_bytes_ = 0;  // a fraction is not lost, however often it is asked
  std::optional<absl::Duration> last_;
};

}  // namespace pagoda::policy
