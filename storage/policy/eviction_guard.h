// What pressure may not take, besides what is leased or pinned: the floor of a scope, and hot
// pages. One guard serves one pick of victims: asked in the order in which they would go, it counts
// what it has let go and what it has kept. Pure.
//
//   floor   a scope keeps at least its floor of bytes in a tier, unless it presses itself
//   hot     a page used `uses_min` times in about the last two windows (use_count.h) stays, until
//           such pages together reach `share` of the tier
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "storage/base/scope.h"

namespace pagoda::policy {

struct HotPinOptions {
  int32_t uses_min = 0;  // 0: nothing is hot; at most 255
  double share = 0.25;   // of the tier's capacity; at most half, so that something can always go
  // INVALID_ARGUMENT unless uses_min is 0 to 255 and share 0 to 0.5.
  absl::Status Validate() const;
};

using ScopeFloors = absl::flat_hash_map<ScopeId, int64_t>;  // bytes in one tier

// INVALID_ARGUMENT when the floors are negative, or together more than `capacity_bytes` at which
// eviction stops: then nothing could go.
absl::Status ValidateFloors(const ScopeFloors& floors, int64_t capacity_bytes, double stop);

struct VictimCandidate {
  ScopeId scope;
  int64_t scope_bytes = 0;  // of the scope in this tier, before the pick
  int64_t bytes = 0;
  uint8_t uses = 0;
};

class EvictionGuard {
 public:
  // `presser` needs the room: its own floor does not hold it back. Null: the tier itself. All of it
  // must outlive the guard.
  EvictionGuard(const ScopeFloors& floors, const HotPinOptions& hot, int64_t capacity_bytes,
                const ScopeId* presser)
      : floors_(floors), hot_(hot), capacity_bytes_(capacity_bytes), presser_(presser) {}

  // True: it may go, and counts as gone.
  bool MayTake(const VictimCandidate& candidate);

 private:
  const ScopeFloors& floors_;
  const HotPinOptions hot_;
  const int64_t capacity_bytes_;
  const ScopeId* const presser_;
  int64_t hot_bytes_ = 0;                        // kept
  absl::flat_hash_map<ScopeId, int64_t> taken_;  // of scopes with a floor
};

}  // namespace pagoda::policy
