#include "storage/policy/token_bucket.h"

#include <algorithm>

namespace pagoda::policy {

TokenBucket::TokenBucket(int64_t bytes_per_second, int64_t burst_bytes)
    : bytes_per_second_(static_cast<double>(bytes_per_second)),
      burst_bytes_(static_cast<double>(burst_bytes)),
      level_bytes_(burst_bytes_) {}

absl::Duration TokenBucket::Take(int64_t bytes, absl::Duration now) {
  if (bytes_per_second_ <= 0) return absl::ZeroDuration();
  const double gained = absl::ToDoubleSeconds(now - filled_at_) * bytes_per_second_;
  filled_at_ = now;
  level_bytes_ = std::min(burst_bytes_, level_bytes_ + std::max(0.0, gained));
  const double owed_bytes = std::max(0.0, -level_bytes_);
  level_bytes_ -= static_cast<double>(bytes);
  return absl::Seconds(owed_bytes / bytes_per_second_);
}

}  // namespace pagoda::policy
