// Goal: every task runs exactly once, whatever the thread and task counts, and what tasks wrote is
// seen by the caller. Method: count runs per index over many loops of changing length, with pools
// of 1, 2 and 5 threads (more than this machine may have), and sum plain memory written by tasks.
#include "client/worker/thread_pool.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace pagoda {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceAndPublishesItsWrites) {
  for (const int thread_count : {1, 2, 5}) {
    ThreadPool pool(thread_count);
    EXPECT_EQ(pool.thread_count(), thread_count);
    for (int64_t count = 0; count < 200; ++count) {
      std::vector<int> runs(count);  // plain ints: a missing happens-before is a data race
      pool.ParallelFor(count, [&](int64_t task, int) { ++runs[task]; });
      EXPECT_EQ(runs, std::vector<int>(count, 1)) << thread_count << " threads";
    }
  }
}

TEST(ThreadPool, ThreadIndexTellsConcurrentTasksApart) {
  ThreadPool pool(3);
  std::vector<int64_t> sums(3);  // each slot belongs to one thread during a loop
  int64_t expected = 0;
  for (int loop = 0; loop < 100; ++loop) {
    pool.ParallelFor(50, [&](int64_t task, int thread) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, 3);
      sums[thread] += task;
    });
    expected += 49 * 50 / 2;
  }
  EXPECT_EQ(sums[0] + sums[1] + sums[2], expected);
}

TEST(ThreadPool, LateThreadsFindWorkAfterSleeping) {
  ThreadPool pool(2);
  for (int loop = 0; loop < 5; ++loop) {
    absl::SleepFor(absl::Milliseconds(2));  // longer than a thread spins
    int64_t done[2] = {0, 0};
    pool.ParallelFor(2, [&](int64_t task, int) { done[task] = 1; });
    EXPECT_EQ(done[0] + done[1], 2);
  }
}

TEST(ThreadPoolDeathTest, RefusesNoThreads) { EXPECT_DEATH(ThreadPool(0), "thread_count >= 1"); }

}  // namespace
}  // namespace pagoda
