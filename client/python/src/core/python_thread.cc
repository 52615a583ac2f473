#include "python_thread.h"

#include <nanobind/nanobind.h>
#include <pthread.h>

#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace pagoda::python {
namespace nb = nanobind;
namespace {

thread_local bool on_python_thread = false;

class PythonThread {
 public:
  void Run(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      new std::function<void()>(std::move(task));  // its objects can no longer be given back
      return;
    }
    if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
    tasks_.push_back(std::move(task));
  }

  void Stop() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::thread thread;
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      thread = std::move(thread_);
    }
    if (thread.joinable()) thread.join();
  }

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_) {
    on_python_thread = true;
    while (true) {
      std::deque<std::function<void()>> tasks;
      {
        absl::MutexLock lock(&mutex_);
        const auto some = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
          return !tasks_.empty() || stopping_;
        };
        mutex_.Await(absl::Condition(&some));
        tasks.swap(tasks_);
        if (tasks.empty()) return;
      }
      nb::gil_scoped_acquire gil;
      for (std::function<void()>& task : tasks) {
        task();
        task = nullptr;
      }
    }
  }

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // once there was a task
};

// Never destroyed: threads of the library may come by until the process ends.
std::atomic<PythonThread*> instance{nullptr};  // release, acquire: it is seen whole
std::atomic<int> fork_generation{0};           // relaxed: written where there is one thread

PythonThread& Instance() {
  // Another one in a forked child, where the thread is missing and its lock may be held for good.
  static const bool ready = [] {
    instance.store(new PythonThread, std::memory_order_release);
    pthread_atfork(nullptr, nullptr, [] {
      instance.store(new PythonThread, std::memory_order_release);
      fork_generation.fetch_add(1, std::memory_order_relaxed);
    });
    return true;
  }();
  (void)ready;
  return *instance.load(std::memory_order_acquire);
}

}  // namespace

void RunWithPython(std::function<void()> task) { Instance().Run(std::move(task)); }

bool OnPythonThread() { return on_python_thread; }

void StopPythonThread() { Instance().Stop(); }

int ForkGeneration() {
  Instance();
  return fork_generation.load(std::memory_order_relaxed);
}

}  // namespace pagoda::python
