// Which layers of the pages of a fetch are complete: told by who receives, waited for by who
// computes.
//
// Threads  one that receives, any that wait
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/page_header.h"

namespace pagoda::client {

class LayerProgress {
 public:
  // In this order: pages, the end of pages, segments of theirs, the end.
  void AddPage(const PageHeader& header) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndPages() ABSL_LOCKS_EXCLUDED(mutex_);
  void AddSegment(const SegmentEntry& segment) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is missing then does not come any more, and `status` says why.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Until no more pages begin.
  absl::Status WaitPages(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WaitLayer(uint32_t layer, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool Complete(uint32_t layer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  bool pages_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> missing_ ABSL_GUARDED_BY(mutex_);  // segments, for each layer they hold
};

}  // namespace pagoda::client
