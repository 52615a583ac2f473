// A few threads for calls that somebody does not want to wait for. Threads start with the first
// job.
//
// Threads    Run() from any thread; jobs on the executor's own
// Limits     kThreadsMax threads, kWaitingMax jobs: a full one refuses
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace pagoda::client {

class Executor {
 public:
  static constexpr size_t kThreadsMax = 4;
  static constexpr size_t kWaitingMax = 1024;

  Executor() = default;
  ~Executor() { Stop(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // False: full, or stopped; the job is not run.
  bool Run(std::function<void()> job) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (stopped_ || jobs_.size() >= kWaitingMax) return false;
    jobs_.push_back(std::move(job));
    if (idle_ < jobs_.size() && threads_.size() < kThreadsMax) {
      threads_.emplace_back([this] { Work(); });
    }
    return true;
  }
  // Every job that was taken has run when this returns. Idempotent, by one thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mutex_) {
    const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return stopped_ || !jobs_.empty();
    };
    while (true) {
      std::function<void()> job;
      {
        absl::MutexLock lock(&mutex_);
        ++idle_;
        mutex_.Await(absl::Condition(&ready));
        --idle_;
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::client
