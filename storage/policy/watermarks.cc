#include "storage/policy/watermarks.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace pagoda::policy {

absl::Status Watermarks::Validate() const {
  // Written so that a NaN fails too.
  if (0 < stop && stop < start && start < hard && hard <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("watermarks start %g, stop %g, hard %g: must be 0 < stop < start < hard <= 1",
                      start, stop, hard));
}

int64_t Watermarks::ExcessBytes(int64_t used_bytes, int64_t capacity_bytes) const {
  const auto capacity = static_cast<double>(capacity_bytes);
  if (static_cast<double>(used_bytes) < start * capacity) return 0;
  return std::max<int64_t>(0, used_bytes - static_cast<int64_t>(stop * capacity));
}

int64_t Watermarks::ShortBytes(int64_t used_bytes, int64_t asked_bytes,
                               int64_t capacity_bytes) const {
  const auto limit = static_cast<int64_t>(hard * static_cast<double>(capacity_bytes));
  return std::max<int64_t>(0, used_bytes + asked_bytes - limit);
}

}  // namespace pagoda::policy
