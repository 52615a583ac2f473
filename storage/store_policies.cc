#include "storage/store_policies.h"

#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"
#include "storage/policy/make_policy.h"

namespace pagoda {
namespace {

absl::Status In(absl::string_view what, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

absl::Status ValidateTier(absl::string_view name, const TierPolicies& tier,
                          int64_t capacity_bytes) {
  PAGODA_RETURN_IF_ERROR(In(name, policy::MakePolicy(tier.eviction).status()));
  PAGODA_RETURN_IF_ERROR(In(name, tier.marks.Validate()));
  if (capacity_bytes == 0) return absl::OkStatus();
  return In(name, policy::ValidateFloors(tier.floors, capacity_bytes, tier.marks.stop));
}

}  // namespace

void StorePolicies::SetFloors(const ScopeId& scope, int64_t host_bytes, int64_t ssd_bytes) {
  const auto set = [&](policy::ScopeFloors& floors, int64_t bytes) {
    floors.erase(scope);
    if (bytes > 0) floors[scope] = bytes;
  };
  set(host.floors, host_bytes);
  set(ssd.floors, ssd_bytes);
}

absl::Status StorePolicies::Validate(int64_t host_capacity_bytes,
                                     int64_t ssd_capacity_bytes) const {
  PAGODA_RETURN_IF_ERROR(ValidateTier("host", host, host_capacity_bytes));
  PAGODA_RETURN_IF_ERROR(ValidateTier("ssd", ssd, ssd_capacity_bytes));
  return hot_pin.Validate();
}

}  // namespace pagoda
