// What the store decides by: which pages go, when, and whose. All of it may be changed while the
// store runs (TieredStore::SetPolicies).
//
// Errors  INVALID_ARGUMENT names the setting, its value and what is accepted
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "storage/policy/eviction_guard.h"
#include "storage/policy/ssd_admission.h"
#include "storage/policy/watermarks.h"

namespace pagoda {

struct TierPolicies {
  std::string eviction = "lru";  // a name of policy/make_policy.h
  policy::Watermarks marks;
  policy::ScopeFloors floors;  // a scope keeps as much, unless it needs the room itself
};

struct StorePolicies {
  TierPolicies host;
  TierPolicies ssd;
  policy::SsdAdmissionKind ssd_admission = policy::SsdAdmissionKind::kAlways;
  policy::HotPinOptions hot_pin;  // of both tiers

  // 0 bytes: no floor.
  void SetFloors(const ScopeId& scope, int64_t host_bytes, int64_t ssd_bytes);
  // `ssd_capacity_bytes` is 0 where there is no SSD.
  absl::Status Validate(int64_t host_capacity_bytes, int64_t ssd_capacity_bytes) const;
};

}  // namespace pagoda
