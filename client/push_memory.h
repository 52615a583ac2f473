// Pages into memory that a pusher reserved.
//
// Threads  pure functions
#pragma once

#include <cstring>

#include "client/client.h"

namespace pagoda::client {

// Copies the item's segments into memory of their size, one behind the other, and makes that the
// item's: what was its memory is not needed any more.
inline void MoveToReserved(Pusher& pusher, PushItem& item) {
  int64_t bytes = 0;
  for (const ByteSpan segment : item.segments) bytes += static_cast<int64_t>(segment.size());
  PushMemory memory = pusher.Reserve(bytes);
  std::byte* at = memory.bytes.data();
  for (ByteSpan& segment : item.segments) {
    std::memcpy(at, segment.data(), segment.size());
    segment = {at, segment.size()};
    at += segment.size();
  }
  item.owner = std::move(memory.owner);
}

}  // namespace pagoda::client
