#include "cache-server/admin_policy.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "storage/base/log.h"
#include "storage/base/scope.h"
#include "storage/base/status_macros.h"
#include "storage/policy/make_policy.h"

namespace pagoda {
namespace {

constexpr int kFloorsMax = 1024;

void ApplyTier(const v1::TierPolicy& wire, TierPolicies& tier) {
  if (!wire.eviction().empty()) tier.eviction = wire.eviction();
  if (!wire.has_watermarks()) return;
  tier.marks = {wire.watermarks().start(), wire.watermarks().stop(), wire.watermarks().hard()};
}

absl::Status Apply(const v1::PolicySet& wire, StorePolicies& policies) {
  ApplyTier(wire.host(), policies.host);
  ApplyTier(wire.ssd(), policies.ssd);
  if (!wire.ssd_admission().empty()) {
    PAGODA_ASSIGN_OR_RETURN(policies.ssd_admission,
                            policy::ParseSsdAdmission(wire.ssd_admission()));
  }
  if (wire.has_hot_pin()) {
    // A number beyond int32 is beyond 255 all the same.
    const auto uses = static_cast<int32_t>(std::min<uint32_t>(wire.hot_pin().uses(), INT32_MAX));
    policies.hot_pin = {uses, wire.hot_pin().share()};
  }
  if (wire.floors_size() > kFloorsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("floors: ", wire.floors_size(), " in one call, at most ", kFloorsMax));
  }
  for (const v1::ScopeFloor& floor : wire.floors()) {
    PAGODA_ASSIGN_OR_RETURN(const Scope scope, ParseNamedScope(floor.scope()));
    const auto bytes = [](uint64_t value) {
      return static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX / 2));
    };
    policies.SetFloors(ScopeIdOf(scope), bytes(floor.host_bytes()), bytes(floor.ssd_bytes()));
  }
  return absl::OkStatus();
}

void FillTier(const TierPolicies& tier, v1::TierPolicy& wire) {
  wire.set_eviction(tier.eviction);
  wire.mutable_watermarks()->set_start(tier.marks.start);
  wire.mutable_watermarks()->set_stop(tier.marks.stop);
  wire.mutable_watermarks()->set_hard(tier.marks.hard);
}

void Fill(const StorePolicies& policies, v1::PolicySet& wire) {
  FillTier(policies.host, *wire.mutable_host());
  FillTier(policies.ssd, *wire.mutable_ssd());
  wire.set_ssd_admission(std::string(policy::SsdAdmissionName(policies.ssd_admission)));
  wire.mutable_hot_pin()->set_uses(static_cast<uint32_t>(policies.hot_pin.uses_min));
  wire.mutable_hot_pin()->set_share(policies.hot_pin.share);
  std::map<ScopeId, std::pair<int64_t, int64_t>> floors;  // in an order that is always the same
  for (const auto& [scope, bytes] : policies.host.floors) floors[scope].first = bytes;
  for (const auto& [scope, bytes] : policies.ssd.floors) floors[scope].second = bytes;
  for (const auto& [scope, bytes] : floors) {
    v1::ScopeFloor& floor = *wire.add_floors();
    floor.set_scope_id(std::string(scope.view()));
    floor.set_host_bytes(static_cast<uint64_t>(bytes.first));
    floor.set_ssd_bytes(static_cast<uint64_t>(bytes.second));
  }
}

}  // namespace

absl::Status SetPolicy(TieredStore& store, const v1::SetPolicyRequest& request,
                       v1::SetPolicyResponse& response) {
  StorePolicies policies = store.policies();
  if (request.has_policy()) {
    PAGODA_RETURN_IF_ERROR(Apply(request.policy(), policies));
    PAGODA_RETURN_IF_ERROR(store.SetPolicies(policies));
    LogInfo("policy_set",
            {{"host_eviction", policies.host.eviction},
             {"ssd_eviction", policies.ssd.eviction},
             {"ssd_admission", std::string(policy::SsdAdmissionName(policies.ssd_admission))}});
  }
  Fill(policies, *response.mutable_policy());
  for (const absl::string_view name : policy::PolicyNames()) {
    response.add_evictions(std::string(name));
  }
  return absl::OkStatus();
}

}  // namespace pagoda
