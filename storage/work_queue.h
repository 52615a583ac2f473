// A bounded queue of jobs and the threads that run them. When it is full it refuses; it never
// makes a caller wait.
//
// Threads    every method from any thread; jobs run on the queue's own threads, one job each
// Limits     queue_max jobs waiting
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace pagoda {

class WorkQueue {
 public:
  using Job = std::function<void()>;

  WorkQueue(int thread_count, int64_t queue_max);
  ~WorkQueue();  // Stop()
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False when the queue is full or stopped; the job is then not run.
  bool TryPush(Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  // As TryPush, but beyond queue_max too: for small jobs that must not be lost. False when stopped.
  bool PushAlways(Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until every job that was pushed before this call has ended, or was dropped by Stop.
  // False after `timeout`.
  bool WaitForEarlier(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until nothing is queued or running. False at the deadline.
  bool Drain(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs what is running to its end, drops the rest, joins the threads. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t waiting_count() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t queue_max_;
  mutable absl::Mutex mutex_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);  // the last one has number next_number_ - 1
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  std::set<uint64_t> running_ ABSL_GUARDED_BY(mutex_);  // numbers
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace pagoda
