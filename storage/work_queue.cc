#include "storage/work_queue.h"

#include "storage/base/check.h"

namespace pagoda {

WorkQueue::WorkQueue(int thread_count, int64_t queue_max) : queue_max_(queue_max) {
  PAGODA_CHECK(thread_count > 0);
  threads_.reserve(thread_count);
  for (int i = 0; i < thread_count; ++i) threads_.emplace_back([this] { Run(); });
}

WorkQueue::~WorkQueue() { Stop(); }

bool WorkQueue::TryPush(Job job) {
  absl::MutexLock lock(&mutex_);
  if (stopped_ || static_cast<int64_t>(jobs_.size()) >= queue_max_) return false;
  jobs_.push_back(std::move(job));
  ++next_number_;
  return true;
}

bool WorkQueue::PushAlways(Job job) {
  absl::MutexLock lock(&mutex_);
  if (stopped_) return false;
  jobs_.push_back(std::move(job));
  ++next_number_;
  return true;
}

bool WorkQueue::WaitForEarlier(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const uint64_t end = next_number_;
  const auto ended = [this, end]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool none_waits = jobs_.empty() || next_number_ - jobs_.size() >= end;
    return none_waits && (running_.empty() || *running_.begin() >= end);
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&ended), timeout);
}

bool WorkQueue::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return jobs_.empty() && running_.empty();
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

void WorkQueue::Stop() {
  std::deque<Job> dropped;  // destroyed outside the lock: a job may own pages
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    dropped.swap(jobs_);
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

int64_t WorkQueue::waiting_count() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(jobs_.size());
}

void WorkQueue::Run() {
  const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !jobs_.empty();
  };
  while (true) {
    Job job;
    uint64_t number = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&wake));
      if (stopped_) return;
      number = next_number_ - jobs_.size();
      job = std::move(jobs_.front());
      jobs_.pop_front();
      running_.insert(number);
    }
    job();
    job = nullptr;  // what it owns goes before the queue counts as idle
    absl::MutexLock lock(&mutex_);
    running_.erase(number);
  }
}

}  // namespace pagoda
