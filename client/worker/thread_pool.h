// A fixed set of threads that share the tasks of one loop at a time. The caller's thread works too,
// so a pool of 1 has no threads of its own and runs everything in the caller.
//
// Order      tasks start in ascending order; which thread runs which is not determined. Code that
//            must not depend on the thread count cuts its work into fixed tasks.
// Threads    ParallelFor() from one thread at a time, never from inside a task; everything a task
//            wrote is visible to the caller afterwards.
// Cost       a few microseconds per loop while loops follow one another: an idle thread looks for
//            work for kSpinCount rounds (about 20 microseconds) before it sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace pagoda {

class ThreadPool {
 public:
  static constexpr int kThreadCountMax = 256;

  // REQUIRES: 1 <= thread_count <= kThreadCountMax.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs task(i, thread) for every i in [0, count) and returns when all are done. `thread` is in
  // [0, thread_count()) and tells concurrent tasks apart: an index into per-thread scratch.
  using Task = absl::FunctionRef<void(int64_t task, int thread)>;
  void ParallelFor(int64_t count, Task task) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr int kSpinCount = 400;  // pause instructions, 50 ns each or so

  void Work(int thread) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunTasks(const Task& task, int64_t count, int thread);

  // Synchronised by themselves. next_task_ hands out indices and publishes nothing: relaxed.
  // generation_ counts loops; written under mutex_, read without it only as a hint to stop
  // spinning. finished_ carries what the tasks wrote: each thread adds with release, the caller
  // acquires.
  std::atomic<int64_t> next_task_{0};
  std::atomic<uint64_t> generation_{0};
  std::atomic<uint64_t> finished_{0};

  absl::Mutex mutex_;
  absl::CondVar work_arrived_;
  absl::CondVar threads_left_;
  const Task* task_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: no loop is open
  int64_t task_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int active_count_ ABSL_GUARDED_BY(mutex_) = 0;  // pool threads inside the open loop
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;  // constant after construction
};

}  // namespace pagoda
