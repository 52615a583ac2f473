// When memory may be used again, as a number to be reached. A timeline is something that only goes
// on: a stream that counts its batches, a worker that counts what it has read. It ends with its
// process, and has then reached everything.
#pragma once

#include <cstdint>

namespace pagoda {

enum class TimelineId : uint64_t {};  // never given twice

struct Fence {
  TimelineId timeline{};
  uint64_t value = 0;  // passed once the timeline has reached it
  bool operator==(const Fence&) const = default;
};

}  // namespace pagoda
