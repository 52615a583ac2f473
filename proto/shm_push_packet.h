// The packet by which a client names a page in its staging area (shm_protocol.h), written and read.
//
// Threads  pure functions
// Errors   INVALID_ARGUMENT  the bytes are no such packet; nothing of them is reported
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda::shm {

// `offsets` are those of the page's segments in the area, `fields` a serialized v1::PushRequest.
std::string PushPacket(uint32_t tag, absl::Span<const uint64_t> offsets, absl::string_view fields);

struct PushView {
  uint32_t tag = 0;
  std::vector<uint64_t> offsets;
  v1::PushRequest fields;
};
absl::StatusOr<PushView> ParsePushPacket(absl::string_view packet);

}  // namespace pagoda::shm
