// TieredStore: bytes counted equal bytes allocated, per tier and scope.
#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

absl::Status Same(absl::string_view what, int64_t a, int64_t b) {
  if (a == b) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s: %d and %d bytes, must be equal", what, a, b));
}

}  // namespace

// Pages become resident, and cease to be, under the store's lock only. So under it the tier's count
// of resident bytes is that of the directory at every moment, whatever is staged or freed beside.
absl::Status TieredStore::CheckTotals() const {
  const HostTierUsage host = host_->usage();
  PAGODA_RETURN_IF_ERROR(
      Same("host tier and directory", host.bytes_of(SlabUse::kResident), directory_.host_bytes()));
  PAGODA_RETURN_IF_ERROR(Same("host tier, used and by use", host.used_bytes,
                              host.bytes_of(SlabUse::kStaged) + host.bytes_of(SlabUse::kResident) +
                                  host.bytes_of(SlabUse::kLingering)));
  int64_t host_bytes = 0;
  int64_t ssd_bytes = 0;
  for (const ScopeStats& scope : directory_.scopes()) {
    host_bytes += scope.host_bytes;
    ssd_bytes += scope.ssd_bytes;
    PAGODA_RETURN_IF_ERROR(Same("host tier and directory, of one scope",
                                host_->scope_usage(scope.scope).bytes_of(SlabUse::kResident),
                                scope.host_bytes));
  }
  PAGODA_RETURN_IF_ERROR(Same("host tier, all scopes", host_bytes, directory_.host_bytes()));
  PAGODA_RETURN_IF_ERROR(Same("ssd, all scopes", ssd_bytes, directory_.ssd_bytes()));
  if (ssd_ == nullptr || ssd_changes_ > 0 || ssd_refused_ || ssd_->has_lost()) {
    return absl::OkStatus();
  }
  return Same("ssd and directory", ssd_->used_bytes(), directory_.ssd_bytes());
}

absl::Status TieredStore::CheckAccounting() {
  absl::MutexLock lock(&mutex_);
  PAGODA_RETURN_IF_ERROR(CheckTotals());
  PAGODA_RETURN_IF_ERROR(host_->CheckAccounting());
  PAGODA_RETURN_IF_ERROR(directory_.CheckSums());
  int64_t demoting_bytes = 0;
  for (const auto& [id, bytes] : demoting_) demoting_bytes += bytes;
  return Same("pages being demoted", demoting_bytes, demoting_bytes_);
}

void TieredStore::FillTierStats(StoreStats& stats) const {
  const HostTierUsage host = host_->usage();
  stats.host.present = true;
  stats.host.capacity_bytes = host.capacity_bytes;
  stats.host.used_bytes = host.used_bytes;
  stats.host.reserved_bytes = host.reserved_bytes;
  stats.host.staged_bytes = host.bytes_of(SlabUse::kStaged);
  stats.host.lingering_bytes = host.bytes_of(SlabUse::kLingering);
  stats.counters.compacted_chunks = host_->drained_chunk_count();
  for (ScopeStats& scope : stats.scopes) {
    const HostTierUsage usage = host_->scope_usage(scope.scope);
    scope.host_used_bytes = usage.used_bytes;
    scope.host_reserved_bytes = usage.reserved_bytes;
  }
  if (ssd_ != nullptr) {
    stats.ssd.present = true;
    stats.ssd.capacity_bytes = ssd_->capacity_bytes();
    stats.ssd.used_bytes = ssd_->used_bytes();
    stats.ssd.reserved_bytes = stats.ssd.used_bytes;
  }
  for (TierStats* tier : {&stats.host, &stats.ssd}) {
    tier->unaccounted_bytes =
        tier->used_bytes - tier->page_bytes - tier->staged_bytes - tier->lingering_bytes;
  }
}

}  // namespace pagoda
