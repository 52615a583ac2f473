// The lease_id of the wire: which lease of the store, of which start of the server, and in which of
// the caller's scopes. Not a secret: a lease is only found together with its session.
//
//   u64 lease | u32 server instance | u32 index in Caller::scopes()      little-endian, 16 bytes
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "storage/lease_table.h"

namespace pagoda {

struct LeaseToken {
  LeaseId lease = 0;
  uint32_t instance = 0;
  uint32_t scope_index = 0;

  std::string Encode() const;
  // Nothing for other lengths.
  static std::optional<LeaseToken> Decode(absl::string_view bytes);
};

}  // namespace pagoda
