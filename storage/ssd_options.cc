#include "storage/ssd_options.h"

#include "absl/strings/str_format.h"

namespace pagoda {

absl::Status SsdOptions::Validate() const {
  const auto at_least = [](absl::string_view name, int64_t value, int64_t least) -> absl::Status {
    if (value >= least) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("ssd %s is %d; must be at least %d", name, value, least));
  };
  if (path.empty()) return absl::InvalidArgumentError("ssd path is empty");
  if (flush_period < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("ssd flush_period is negative");
  }
  for (const absl::Status& status :
       {at_least("capacity_bytes", capacity_bytes, int64_t{1} << 20),
        at_least("write_buffer_bytes", write_buffer_bytes, int64_t{1} << 20),
        at_least("blob_file_bytes", blob_file_bytes, int64_t{1} << 20),
        at_least("block_cache_bytes", block_cache_bytes, 0),
        at_least("background_jobs", background_jobs, 2),
        at_least("background_bytes_per_second_max", background_bytes_per_second_max, 0)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace pagoda
