// Goal: jobs run once and in order, a full queue refuses, stopping loses nothing that ran. Method:
// one blocked worker, so that the queue's length is known.
#include "storage/work_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"

namespace pagoda {
namespace {

TEST(WorkQueueTest, RunsInOrderAndDrains) {
  WorkQueue queue(1, 100);
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(queue.TryPush([&order, i] { order.push_back(i); }));
  EXPECT_TRUE(queue.Drain(absl::InfiniteDuration()));
  ASSERT_EQ(order.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[i], i);
}

TEST(WorkQueueTest, RefusesWhenFullAndWhenStopped) {
  absl::Notification started;
  absl::Notification release;
  std::atomic<int> ran{0};
  WorkQueue queue(1, 2);
  ASSERT_TRUE(queue.TryPush([&] {
    started.Notify();
    release.WaitForNotification();
  }));
  started.WaitForNotification();
  EXPECT_TRUE(queue.TryPush([&] { ++ran; }));
  EXPECT_TRUE(queue.TryPush([&] { ++ran; }));
  EXPECT_FALSE(queue.TryPush([&] { ++ran; }));
  EXPECT_TRUE(queue.PushAlways([&] { ++ran; }));
  EXPECT_EQ(queue.waiting_count(), 3);
  EXPECT_FALSE(queue.Drain(absl::Milliseconds(5)));
  release.Notify();
  EXPECT_TRUE(queue.Drain(absl::InfiniteDuration()));
  EXPECT_EQ(ran, 3);
  queue.Stop();
  queue.Stop();
  EXPECT_FALSE(queue.TryPush([&] { ++ran; }));
  EXPECT_FALSE(queue.PushAlways([&] { ++ran; }));
  EXPECT_EQ(ran, 3);
}

TEST(WorkQueueTest, WaitsForWhatWasPushedBeforeAndForNothingElse) {
  WorkQueue queue(2, 100);
  absl::Notification release;
  std::atomic<bool> early{false};
  ASSERT_TRUE(queue.TryPush([&] {
    release.WaitForNotification();
    early = true;
  }));
  std::thread releaser([&] { release.Notify(); });
  EXPECT_TRUE(queue.WaitForEarlier(absl::Seconds(60)));
  EXPECT_TRUE(early);
  releaser.join();
  absl::Notification never;
  absl::Notification started;
  ASSERT_TRUE(queue.TryPush([] {}));
  EXPECT_TRUE(queue.WaitForEarlier(absl::Seconds(60)));
  ASSERT_TRUE(queue.TryPush([&] {
    started.Notify();
    never.WaitForNotification();
  }));
  started.WaitForNotification();
  std::thread stopper([&] { queue.Stop(); });
  never.Notify();
  stopper.join();
  EXPECT_TRUE(queue.WaitForEarlier(absl::Seconds(60)));  // stopped: nothing waits
}

TEST(WorkQueueTest, ThreadsRunSideBySide) {
  WorkQueue queue(2, 4);
  absl::Notification first;
  absl::Notification second;
  ASSERT_TRUE(queue.TryPush([&] {
    first.Notify();
    second.WaitForNotification();
  }));
  ASSERT_TRUE(queue.TryPush([&] {
    first.WaitForNotification();
    second.Notify();
  }));
  EXPECT_TRUE(queue.Drain(absl::Seconds(30)));
}

}  // namespace
}  // namespace pagoda
