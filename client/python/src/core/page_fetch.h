// A fetch under way, for Python: layer by layer.
//
// Threads    every method from any thread; waits take turns, cancel() ends the one that waits
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"
#include "shared_client.h"

namespace pagoda::python {

class FetchState : public Closeable {
 public:
  explicit FetchState(std::shared_ptr<client::PageFetch> fetch) : fetch_(std::move(fetch)) {}

  void Close() override ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

  // Without the GIL, one caller at a time. FAILED_PRECONDITION once it is over.
  template <typename F>
  auto Wait(F&& function) -> decltype(function(std::declval<client::PageFetch&>()))
      ABSL_LOCKS_EXCLUDED(mutex_, turn_) {
    absl::MutexLock turn(&turn_);
    absl::StatusOr<std::shared_ptr<client::PageFetch>> fetch = Get();
    if (!fetch.ok()) return fetch.status();
    return function(**fetch);
  }
  // The last call.
  absl::StatusOr<client::FetchResult> Finish() ABSL_LOCKS_EXCLUDED(mutex_, turn_);

 private:
  absl::StatusOr<std::shared_ptr<client::PageFetch>> Get() const ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex turn_;  // held while one waits: the library takes one caller at a time
  mutable absl::Mutex mutex_;
  InThisProcess<client::PageFetch> fetch_ ABSL_GUARDED_BY(mutex_);  // null: over
};

// What Python holds. Destroyed, it cancels.
class Fetch {
 public:
  Fetch(std::shared_ptr<FetchState> state, std::shared_ptr<SharedClient> client)
      : state_(std::move(state)), client_(std::move(client)) {}
  ~Fetch();
  Fetch(Fetch&&) = default;

  FetchState& state() const { return *state_; }

 private:
  std::shared_ptr<FetchState> state_;
  std::shared_ptr<SharedClient> client_;
};

void RegisterPageFetch(nanobind::module_& module);

}  // namespace pagoda::python
