#include "storage/policy/eviction_guard.h"

#include "absl/strings/str_format.h"

namespace pagoda::policy {

absl::Status HotPinOptions::Validate() const {
  if (uses_min < 0 || uses_min > 255) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hot pin uses_min is %d; must be 0 (off) to 255", uses_min));
  }
  if (share >= 0 && share <= 0.5) return absl::OkStatus();  // a NaN fails too
  return absl::InvalidArgumentError(
      absl::StrFormat("hot pin share is %g; must be 0 to 0.5 of the tier", share));
}

absl::Status ValidateFloors(const ScopeFloors& floors, int64_t capacity_bytes, double stop) {
  int64_t sum = 0;
  for (const auto& [scope, bytes] : floors) {
    if (bytes < 0 || bytes > capacity_bytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("floor of scope %s is %d bytes; must be 0 to the tier's %d", scope.hex(),
                          bytes, capacity_bytes));
    }
    sum += bytes;
  }
  const auto limit = static_cast<int64_t>(stop * static_cast<double>(capacity_bytes));
  if (sum <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the floors of all scopes are %d bytes; must be at most %d, where eviction "
                      "stops: lower a floor, or enlarge the tier",
                      sum, limit));
}

bool EvictionGuard::MayTake(const VictimCandidate& candidate) {
  const auto floor = floors_.find(candidate.scope);
  const bool guarded =
      floor != floors_.end() && (presser_ == nullptr || *presser_ != candidate.scope);
  int64_t* taken = guarded ? &taken_[candidate.scope] : nullptr;
  if (guarded && candidate.scope_bytes - *taken - candidate.bytes < floor->second) return false;
  const bool hot = hot_.uses_min > 0 && candidate.uses >= hot_.uses_min;
  const auto hot_limit = static_cast<int64_t>(hot_.share * static_cast<double>(capacity_bytes_));
  if (hot && hot_bytes_ + candidate.bytes <= hot_limit) {
    hot_bytes_ += candidate.bytes;
    return false;
  }
  if (taken != nullptr) *taken += candidate.bytes;
  return true;
}

}  // namespace pagoda::policy
