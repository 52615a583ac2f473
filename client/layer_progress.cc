#include "client/layer_progress.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace pagoda::client {

void LayerProgress::AddPage(const PageHeader& header) {
  absl::MutexLock lock(&mutex_);
  for (const SegmentEntry& segment : header.segments) {
    const size_t end = size_t{segment.layer_begin} + segment.layer_count;
    if (missing_.size() < end) missing_.resize(end);
    for (size_t layer = segment.layer_begin; layer < end; ++layer) ++missing_[layer];
  }
}

void LayerProgress::EndPages() {
  absl::MutexLock lock(&mutex_);
  pages_over_ = true;
}

void LayerProgress::AddSegment(const SegmentEntry& segment) {
  absl::MutexLock lock(&mutex_);
  const size_t end = size_t{segment.layer_begin} + segment.layer_count;
  for (size_t layer = segment.layer_begin; layer < end; ++layer) --missing_[layer];
}

void LayerProgress::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (over_) return;
  over_ = true;
  status_ = status;
}

absl::Status LayerProgress::WaitPages(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return pages_over_ || over_; };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout)) {
    return absl::DeadlineExceededError("fetch: no page came in time");
  }
  return pages_over_ ? absl::OkStatus() : status_;
}

bool LayerProgress::Complete(uint32_t layer) const {
  const size_t end = std::min(missing_.size(), size_t{layer} + 1);
  return std::all_of(missing_.begin(), missing_.begin() + static_cast<std::ptrdiff_t>(end),
                     [](int64_t missing) { return missing == 0; });
}

absl::Status LayerProgress::WaitLayer(uint32_t layer, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto ready = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return over_ || (pages_over_ && Complete(layer));
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout)) {
    return absl::DeadlineExceededError(
        absl::StrFormat("fetch: layer %d did not come in time", layer));
  }
  if (pages_over_ && Complete(layer)) return absl::OkStatus();
  if (!status_.ok()) return status_;
  return absl::DataLossError("fetch: pages arrived in part");
}

}  // namespace pagoda::client
