#include "attention_calls.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/worker/thread_pool.h"

namespace pagoda::python {
namespace {

// Queries that one task takes. A row's result does not depend on how they are cut, as long as no
// task has a single one: that is decode, whose sums are ordered differently.
constexpr int64_t kTaskQueries = 128;

// Less work than this (products of q and k, all heads) is not worth waking a thread for.
constexpr int64_t kSharedWorkMin = 1 << 18;

struct Workers {
  explicit Workers(int thread_count)
      : pool(thread_count), scratches(static_cast<size_t>(thread_count)) {}
  ThreadPool pool;
  std::vector<kernels::AttentionScratch> scratches;
};

std::atomic<int> thread_count{1};  // relaxed: a number, nothing else is published with it

absl::Mutex workers_mutex(absl::kConstInit);
std::unique_ptr<Workers> workers ABSL_GUARDED_BY(workers_mutex);

// Threads do not live on in a forked child, nor does a lock that one of them held.
void ForgetWorkers() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static_cast<void>(workers.release());
  thread_count.store(1, std::memory_order_relaxed);
}

struct Task {
  int32_t head = 0;
  int64_t begin = 0;  // queries
  int64_t end = 0;
};

std::vector<Task> CutTasks(const AttentionCall& call) {
  std::vector<Task> tasks;
  for (int64_t begin = 0; begin < call.query_count;) {
    int64_t end = std::min(begin + kTaskQueries, call.query_count);
    if (end + 1 == call.query_count) end = call.query_count;
    for (int32_t head = 0; head < call.head_count; ++head) tasks.push_back({head, begin, end});
    begin = end;
  }
  return tasks;
}

absl::Status Run(const AttentionCall& call, const Task& task, kernels::AttentionScratch& scratch) {
  const int64_t heads = int64_t{call.head_count} * call.group_count;
  const int64_t stride = heads * call.head_dim;
  const int64_t at = task.begin * stride + int64_t{task.head} * call.group_count * call.head_dim;
  const int64_t count = task.end - task.begin;
  std::vector<float> lse2(call.lse2 == nullptr
                              ? 0
                              : static_cast<size_t>(count) * static_cast<size_t>(call.group_count));
  kernels::AttentionParams params;
  params.q = call.q + at;
  params.q_stride = stride;
  params.out = call.out + at;
  params.out_stride = stride;
  params.lse2 = lse2.empty() ? nullptr : lse2.data();
  params.query_count = static_cast<int32_t>(count);
  params.group_count = call.group_count;
  params.head_dim = call.head_dim;
  params.page_tokens = call.page_tokens;
  params.first_position = call.first_position + task.begin;
  params.softmax_scale = call.softmax_scale;
  params.pages = call.tiles[static_cast<size_t>(task.head)];
  params.float_codes = call.float_codes;
  if (absl::Status status = kernels::AttentionCpu(params, scratch); !status.ok()) return status;
  for (int64_t i = 0; call.lse2 != nullptr && i < count; ++i) {
    std::copy_n(lse2.data() + i * call.group_count, call.group_count,
                call.lse2 + (task.begin + i) * heads + int64_t{task.head} * call.group_count);
  }
  return absl::OkStatus();
}

absl::Status RunAlone(const AttentionCall& call, const std::vector<Task>& tasks) {
  thread_local kernels::AttentionScratch scratch;
  for (const Task& task : tasks) {
    if (absl::Status status = Run(call, task, scratch); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RunShared(const AttentionCall& call, const std::vector<Task>& tasks, int threads)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(workers_mutex) {
  if (workers == nullptr || workers->pool.thread_count() != threads) {
    workers = std::make_unique<Workers>(threads);
  }
  Workers& shared = *workers;
  std::vector<absl::Status> statuses(tasks.size());
  shared.pool.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t task, int thread) {
    statuses[static_cast<size_t>(task)] =
        Run(call, tasks[static_cast<size_t>(task)], shared.scratches[static_cast<size_t>(thread)]);
  });
  for (absl::Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  return absl::OkStatus();
}

int64_t WorkOf(const AttentionCall& call) {
  return call.query_count * call.group_count * call.head_count * call.page_tokens *
         static_cast<int64_t>(call.tiles.empty() ? 0 : call.tiles.front().size()) * call.head_dim;
}

}  // namespace

absl::Status SetAttentionThreads(int count) {
  if (count < 1 || count > ThreadPool::kThreadCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("attention: %d threads, expected 1 to %d",
                                                      count, ThreadPool::kThreadCountMax));
  }
  static const int registered = pthread_atfork(nullptr, nullptr, ForgetWorkers);
  static_cast<void>(registered);
  thread_count.store(count, std::memory_order_relaxed);
  return absl::OkStatus();
}

int AttentionThreads() { return thread_count.load(std::memory_order_relaxed); }

absl::Status Attend(const AttentionCall& call) {
  const std::vector<Task> tasks = CutTasks(call);
  const int threads = AttentionThreads();
  if (threads > 1 && tasks.size() > 1 && WorkOf(call) >= kSharedWorkMin &&
      workers_mutex.TryLock()) {
    absl::Status status = RunShared(call, tasks, threads);
    workers_mutex.Unlock();
    return status;
  }
  return RunAlone(call, tasks);
}

}  // namespace pagoda::python
