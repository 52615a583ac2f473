#include "storage/tiered_store_options.h"

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace pagoda {

absl::Status TieredStoreOptions::Validate() const {
  PAGODA_RETURN_IF_ERROR(host.Validate());
  if (!ssd.path.empty()) PAGODA_RETURN_IF_ERROR(ssd.Validate());
  PAGODA_RETURN_IF_ERROR(
      policies.Validate(host.capacity_bytes, ssd.path.empty() ? 0 : ssd.capacity_bytes));
  PAGODA_RETURN_IF_ERROR(prefetch.Validate());
  const auto positive = [](absl::string_view name, int64_t value) -> absl::Status {
    if (value > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("store %s is %d; must be positive", name, value));
  };
  for (const absl::Status& status :
       {positive("leases_per_session_max", leases.leases_per_session_max),
        positive("leases_max", leases.leases_max),
        positive("pages_per_lease_max", leases.pages_per_lease_max),
        positive("lease_ttl_max", absl::ToInt64Milliseconds(lease_ttl_max)),
        positive("use_window", absl::ToInt64Seconds(use_window)),
        positive("load_timeout", absl::ToInt64Milliseconds(load_timeout)),
        positive("loader_threads", loader_threads), positive("writer_threads", writer_threads),
        positive("load_queue_max", load_queue_max),
        positive("write_queue_pages_max", write_queue_pages_max),
        positive("compaction_bytes_per_second", compaction_bytes_per_second),
        positive("demotion_period", absl::ToInt64Milliseconds(demotion_period))}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace pagoda
