// Where the bytes of a fetched page go: memory of the result's own, or of who asked.
//
// Threads  pure functions    Errors  INVALID_ARGUMENT  the target's memory does not fit the page
#pragma once

#include <cstring>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "client/client.h"

namespace pagoda::client {

struct FetchMemory {
  std::vector<kernels::AlignedBuffer> own;  // empty with a target
  std::vector<MutableByteSpan> segments;    // stored_bytes() each; payloads come, padding is zero
};

inline absl::StatusOr<FetchMemory> MemoryFor(uint32_t page_index, const PageHeader& header,
                                             const PageTarget& target) {
  FetchMemory memory;
  if (target != nullptr) {
    memory.segments = target(page_index, header);
    if (memory.segments.size() != header.segments.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("fetch: the target has memory for %d segments of a page of %d",
                          memory.segments.size(), header.segments.size()));
    }
  } else {
    memory.own.reserve(header.segments.size());
    for (const SegmentEntry& segment : header.segments) {
      memory.own.push_back(kernels::AlignedBuffer::Uninitialized(segment.stored_bytes()));
      memory.segments.push_back(memory.own.back().mutable_span());
    }
  }
  for (size_t i = 0; i < header.segments.size(); ++i) {
    const SegmentEntry& segment = header.segments[i];
    const MutableByteSpan to = memory.segments[i];
    if (to.size() != static_cast<size_t>(segment.stored_bytes())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "fetch: the target has %d bytes for a segment of %d", to.size(), segment.stored_bytes()));
    }
    std::memset(to.data() + segment.length, 0, to.size() - segment.length);
  }
  return memory;
}

}  // namespace pagoda::client
