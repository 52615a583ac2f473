#include "client/worker/thread_pool.h"

#include "storage/base/check.h"

namespace pagoda {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int thread_count) {
  PAGODA_CHECK(thread_count >= 1);
  PAGODA_CHECK(thread_count <= kThreadCountMax);
  threads_.reserve(thread_count - 1);
  for (int thread = 1; thread < thread_count; ++thread) {
    threads_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    PAGODA_CHECK(task_ == nullptr);
    stopping_ = true;
    generation_.fetch_add(1, std::memory_order_release);
    work_arrived_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::RunTasks(const Task& task, int64_t count, int thread) {
  for (;;) {
    const int64_t index = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count) return;
    task(index, thread);
  }
}

void ThreadPool::ParallelFor(int64_t count, Task task) {
  if (threads_.empty() || count <= 1) {
    for (int64_t index = 0; index < count; ++index) task(index, 0);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    PAGODA_CHECK(task_ == nullptr);
    next_task_.store(0, std::memory_order_relaxed);
    task_ = &task;
    task_count_ = count;
    generation_.fetch_add(1, std::memory_order_release);
    work_arrived_.SignalAll();
  }
  RunTasks(task, count, 0);
  // A thread that has not woken up by now finds no loop: nobody waits for a late riser.
  absl::MutexLock lock(&mutex_);
  task_ = nullptr;
  while (active_count_ > 0) threads_left_.Wait(&mutex_);
  finished_.load(std::memory_order_acquire);
}

void ThreadPool::Work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpinCount; ++spin) {
      if (generation_.load(std::memory_order_acquire) != seen) break;
      Pause();
    }
    const Task* task = nullptr;
    int64_t count = 0;
    {
      absl::MutexLock lock(&mutex_);
      while (generation_.load(std::memory_order_acquire) == seen) work_arrived_.Wait(&mutex_);
      if (stopping_) return;
      seen = generation_.load(std::memory_order_acquire);
      if (task_ == nullptr) continue;
      task = task_;
      count = task_count_;
      ++active_count_;
    }
    RunTasks(*task, count, thread);
    finished_.fetch_add(1, std::memory_order_release);
    absl::MutexLock lock(&mutex_);
    if (--active_count_ == 0) threads_left_.Signal();
  }
}

}  // namespace pagoda
