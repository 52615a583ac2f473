// A stream of pages, for Python.
//
// Threads    every method from any thread. The callback runs on the Python thread of this module
//            (python_thread.h), once for each page, before flush() returns.
// Ownership  a page's buffers are held until it is answered. No callback comes after the end of
//            this object.
// Limits     kUnheardPagesMax answers wait for a callback that is slow; then push() refuses
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"
#include "shared_client.h"

namespace pagoda::python {

constexpr int64_t kUnheardPagesMax = 65536;

struct PushCounts {
  int64_t pushed = 0;
  int64_t stored = 0;
  int64_t already_stored = 0;
  int64_t replaced = 0;
  int64_t failed = 0;
  int64_t bytes = 0;  // of those pushed
};

// What library threads know of a pusher. They hold it by shared_ptr, and may be the last to.
class PusherState : public Closeable, public std::enable_shared_from_this<PusherState> {
 public:
  explicit PusherState(bool has_callback) : has_callback_(has_callback) {}
  void Open(std::shared_ptr<client::Pusher> pusher) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() override ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Push(client::PushItem item) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<client::PushMemory> Reserve(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // One step of a flush: DEADLINE_EXCEEDED after `timeout`. Callbacks have run, too.
  absl::Status Flush(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // On a thread of the library.
  void Answered(const PageKey& key, const absl::StatusOr<client::PushOutcome>& outcome)
      ABSL_LOCKS_EXCLUDED(mutex_);
  PushCounts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

  // With the GIL. Null: nobody listens, or not any more.
  void set_callback(nanobind::object callback) { callback_ = std::move(callback); }
  nanobind::handle callback() const { return callback_; }
  nanobind::object TakeCallback() { return std::move(callback_); }

 private:
  absl::StatusOr<std::shared_ptr<client::Pusher>> Get() const ABSL_LOCKS_EXCLUDED(mutex_);
  void CallBack(const PageKey& key, const std::string& outcome) ABSL_LOCKS_EXCLUDED(mutex_);

  nanobind::object callback_;  // guarded by the GIL; null when this is destroyed
  const bool has_callback_;
  mutable absl::Mutex mutex_;
  InThisProcess<client::Pusher> pusher_ ABSL_GUARDED_BY(mutex_);  // null: closed
  int64_t unheard_ ABSL_GUARDED_BY(mutex_) = 0;                   // answers
  PushCounts counts_ ABSL_GUARDED_BY(mutex_);
};

// What Python holds.
class PyPusher {
 public:
  PyPusher(std::shared_ptr<PusherState> state, std::shared_ptr<SharedClient> client)
      : state_(std::move(state)), client_(std::move(client)) {}
  ~PyPusher();
  PyPusher(PyPusher&&) = default;

  PusherState& state() const { return *state_; }

 private:
  std::shared_ptr<PusherState> state_;
  std::shared_ptr<SharedClient> client_;
};

void RegisterPusher(nanobind::module_& module);

}  // namespace pagoda::python
