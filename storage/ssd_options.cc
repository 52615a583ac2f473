#include "storage/ssd_options.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/bytes.h"

namespace pagoda {
namespace {

constexpr int64_t kFileBytesMin = int64_t{32} << 20;  // a large page fits
constexpr int64_t kFilesWanted = 8;
constexpr int64_t kFilesMax = 256;
constexpr int64_t kFileAlignBytes = int64_t{1} << 20;

}  // namespace

int64_t SsdOptions::file_bytes() const {
  const int64_t small = std::max(kFileBytesMin, capacity_bytes / kFilesWanted);
  const int64_t bytes = std::max(std::min(extent_file_bytes, small), capacity_bytes / kFilesMax);
  return AlignUp(bytes, kFileAlignBytes);
}

int64_t SsdOptions::file_count_max() const {
  return (capacity_bytes + capacity_bytes / 16) / file_bytes() + 2;
}

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
        at_least("extent_file_bytes", extent_file_bytes, int64_t{1} << 20),
        at_least("index_buffer_bytes", index_buffer_bytes, int64_t{64} << 10),
        at_least("block_cache_bytes", block_cache_bytes, 0),
        at_least("background_jobs", background_jobs, 2),
        at_least("write_bytes_per_second_max", write_bytes_per_second_max, 0)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace pagoda
