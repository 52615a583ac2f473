// TieredStore: what decides which pages go, and how it is changed while the store runs.
#include <algorithm>

#include "storage/base/status_macros.h"
#include "storage/policy/make_policy.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

// What a full tier holds in the long run: between the marks it breathes.
int64_t FullBytes(const policy::Watermarks& marks, int64_t capacity_bytes) {
  return static_cast<int64_t>(marks.start * static_cast<double>(capacity_bytes));
}

}  // namespace

absl::Status TieredStore::SetPolicies(const StorePolicies& policies) {
  const int64_t host_bytes = options_.host.capacity_bytes;
  const int64_t ssd_bytes = options_.ssd.path.empty() ? 0 : options_.ssd.capacity_bytes;
  PAGODA_RETURN_IF_ERROR(policies.Validate(host_bytes, ssd_bytes));
  PAGODA_ASSIGN_OR_RETURN(auto host_policy, policy::MakePolicy(policies.host.eviction));
  PAGODA_ASSIGN_OR_RETURN(auto ssd_policy, policy::MakePolicy(policies.ssd.eviction));
  absl::MutexLock lock(&mutex_);
  if (directory_.host_policy().name() != policies.host.eviction) {
    directory_.SetHostPolicy(std::move(host_policy));
  }
  if (directory_.ssd_policy().name() != policies.ssd.eviction) {
    directory_.SetSsdPolicy(std::move(ssd_policy));
  }
  directory_.host_policy().set_capacity_bytes(FullBytes(policies.host.marks, host_bytes));
  directory_.ssd_policy().set_capacity_bytes(FullBytes(policies.ssd.marks, ssd_bytes));
  if (admission_.kind() != policies.ssd_admission) {
    admission_ = policy::SsdAdmission(policies.ssd_admission);
  }
  policies_ = policies;
  demotion_asked_ = true;
  return absl::OkStatus();
}

StorePolicies TieredStore::policies() const {
  absl::MutexLock lock(&mutex_);
  return policies_;
}

policy::Watermarks TieredStore::host_marks() const {
  absl::MutexLock lock(&mutex_);
  return policies_.host.marks;
}

void TieredStore::ReportAttention(const ScopeId& scope, absl::Span<const RecordKey> keys,
                                  absl::Span<const double> masses) {
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < std::min(keys.size(), masses.size()); ++i) {
    const EntryId id = directory_.Find(keys[i], scope);
    if (id != kNoEntry) directory_.ReportAttention(id, masses[i]);
  }
}

policy::EvictionGuard TieredStore::GuardOf(TierKind tier, const ScopeId* presser) const {
  const bool host = tier == TierKind::kHost;
  return policy::EvictionGuard(host ? policies_.host.floors : policies_.ssd.floors,
                               policies_.hot_pin,
                               host ? host_->capacity_bytes() : ssd_->capacity_bytes(), presser);
}

policy::VictimCandidate TieredStore::CandidateOf(TierKind tier, EntryId id) const {
  const DirectoryEntry& entry = directory_.at(id);
  const ScopeStats& scope = directory_.scope_stats_of(id);
  const bool host = tier == TierKind::kHost;
  return {scope.scope, host ? scope.host_bytes : scope.ssd_bytes,
          host ? entry.host->bytes() : entry.ssd_bytes(),
          directory_.UsesOf(id, clock_.Monotonic())};
}

bool TieredStore::Admitted(EntryId id) {
  const DirectoryEntry& entry = directory_.at(id);
  // What is there is kept up to date, and what others follow is needed.
  if (entry.on_ssd() || entry.child_count > 0) return true;
  return admission_.Admit(directory_.fingerprint_of(id), /*used_again=*/entry.uses > 0);
}

bool TieredStore::WorthWritingEarly(EntryId id) const {
  const DirectoryEntry& entry = directory_.at(id);
  return admission_.kind() == policy::SsdAdmissionKind::kAlways || entry.on_ssd() || entry.uses > 0;
}

}  // namespace pagoda
