// Goal: a sick disk costs misses, never a wait, and the store finds back by itself. Method: system
// calls that fail or hang, and a clock that the test moves.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>

#include "storage/testing/fault_fixture.h"

namespace pagoda {
namespace {

using absl::StatusCode;
using policy::BreakerReason;
using policy::BreakerState;

class TieredStoreBreakerTest : public FaultTest {
 protected:
  TieredStoreBreakerTest() { options_.loader_threads = 1; }

  BreakerState State() { return store_->Stats().ssd_breaker; }
  int64_t Trips(BreakerReason reason) {
    return store_->Stats().counters.ssd_breaker_trips[static_cast<int>(reason)];
  }
  // Three chains of one page on SSD only.
  void OpenWithPages() {
    Open();
    PushAndWrite(pages_);
    DropFromHost();
  }
  // Three writes in a row fail.
  void TripByWrites() {
    files_.Fail(Call::kWrite, EIO);
    PushAndWrite({TestRoot(11), TestRoot(12), TestRoot(13)});
    ASSERT_EQ(State(), BreakerState::kOpen);
  }
  bool HealsAfter(absl::Duration period) {
    clock_.Advance(period);
    return Eventually([&] { return State() == BreakerState::kClosed; });
  }
  void ExpectEverythingWorks() {
    ExpectWhole(pages_);
    const std::vector<TestPage> fresh = {TestRoot(21), TestRoot(22)};
    PushAndWrite(fresh);
    for (const TestPage& page : fresh) EXPECT_TRUE(OnSsd(page));
    DropFromHost();
    ExpectWhole(fresh);
    ExpectExact();
  }
  const std::vector<TestPage> pages_ = {TestRoot(1), TestRoot(2), TestRoot(3)};
};

TEST_F(TieredStoreBreakerTest, AnOpenBreakerPromisesNothingAndHealsByItself) {
  OpenWithPages();
  CapturedLog log;
  TripByWrites();
  EXPECT_EQ(Trips(BreakerReason::kErrors), 1);
  EXPECT_TRUE(log.Has("ssd_breaker_open", "reason=errors"));
  // No page on SSD is promised or read; pages in memory are served.
  const int64_t reads = store_->Stats().counters.loads_started;
  EXPECT_TRUE(Lookup({pages_[0]}).pages.empty());
  EXPECT_THAT(Load(pages_[0]), StatusIs(StatusCode::kUnavailable, "set aside"));
  EXPECT_EQ(store_->Stats().counters.loads_started, reads);
  ExpectWhole({TestRoot(11)});
  EXPECT_THAT(store_->PersistAsync(TestRoot(11).record(), TestRoot(11).scope()),
              StatusIs(StatusCode::kUnavailable, "set aside (errors); tried again after 5s"));
  // The disk is still sick when it is tried: twice as long.
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(Eventually([&] { return Trips(BreakerReason::kProbe) == 1; }));
  EXPECT_TRUE(log.Has("ssd_probe_failed", "Input/output error"));
  files_.Heal();
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(State(), BreakerState::kOpen);
  EXPECT_TRUE(HealsAfter(absl::Seconds(1)));
  EXPECT_TRUE(Eventually([&] { return log.Has("ssd_breaker_closed"); }));
  EXPECT_EQ(Lookup({pages_[0]}).pages.size(), 1u);
  ExpectEverythingWorks();
}

TEST_F(TieredStoreBreakerTest, DirtyPagesStayUntilTheHardMarkAndCleanOnesGo) {
  options_.host.capacity_bytes = 4 << 20;
  OpenWithPages();
  ExpectWhole(pages_);  // clean copies in memory
  TripByWrites();
  const std::vector<TestPage> dirty = {TestRoot(11), TestRoot(12), TestRoot(13)};
  for (uint32_t token = 100; token < 150; ++token) Push(TestRoot(token)).IgnoreError();
  int64_t kept = 0;
  for (const TestPage& page : dirty) kept += Get(page) != nullptr ? 1 : 0;
  EXPECT_GT(kept, 0);
  // Far beyond what memory holds: the cache forgets, and pushes go on.
  for (uint32_t token = 200; token < 600; ++token) {
    ASSERT_TRUE(Eventually([&] { return Push(TestRoot(token)).ok(); })) << token;
  }
  EXPECT_EQ(store_->Stats().ssd.page_count, 3);
  files_.Heal();
  EXPECT_TRUE(HealsAfter(absl::Seconds(5)));
  ExpectWhole(pages_);
}

TEST_F(TieredStoreBreakerTest, FailingFlushesOpenItToo) {
  options_.ssd.flush_period = absl::Milliseconds(5);
  OpenWithPages();
  CapturedLog log;
  env_.FailWrites(rocksdb::IOStatus::IOError("Input/output error"));
  PushAndWrite({TestRoot(11)});
  EXPECT_TRUE(Eventually([&] { return State() == BreakerState::kOpen; }));
  EXPECT_TRUE(log.Has("ssd_flush_failed"));
  env_.Heal();
  EXPECT_TRUE(HealsAfter(absl::Seconds(5)));
  ExpectEverythingWorks();
}

TEST_F(TieredStoreBreakerTest, AReadThatHangsIsAnsweredAtItsDeadline) {
  OpenWithPages();
  CapturedLog log;
  files_.Hang(Call::kRead);
  std::atomic<int> unavailable{0};
  const auto load = [&](const TestPage& page) {
    store_->LoadAsync(page.record(), page.scope(), [&](const absl::StatusOr<HostPagePtr>& answer) {
      if (answer.status().code() == StatusCode::kUnavailable) ++unavailable;
    });
  };
  load(pages_[0]);
  load(pages_[0]);  // waits for the same read
  load(pages_[1]);  // waits behind it: there is one loader
  EXPECT_TRUE(Eventually([&] { return files_.fault_count() > 0; }));
  EXPECT_EQ(unavailable, 0);
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(Eventually([&] { return unavailable == 3; }));
  EXPECT_EQ(store_->Stats().counters.loads_late, 3);
  EXPECT_TRUE(Eventually([&] { return State() == BreakerState::kOpen; }));
  EXPECT_EQ(Trips(BreakerReason::kHung), 1);
  EXPECT_TRUE(log.Has("ssd_breaker_open", "reason=hung"));
  load(pages_[2]);
  EXPECT_EQ(unavailable, 4);  // at once
  files_.Heal();
  EXPECT_TRUE(HealsAfter(absl::Seconds(5)));
  ExpectEverythingWorks();
}

TEST_F(TieredStoreBreakerTest, AWriteThatHangsHoldsUpNobody) {
  OpenWithPages();
  files_.Hang(Call::kWrite);
  PAGODA_ASSERT_OK(Push(TestRoot(11)));
  PAGODA_ASSERT_OK(store_->PersistAsync(TestRoot(11).record(), TestRoot(11).scope()));
  EXPECT_TRUE(Eventually([&] { return files_.fault_count() > 0; }));
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(Eventually([&] { return State() == BreakerState::kOpen; }));
  ExpectWhole({TestRoot(11)});
  PAGODA_EXPECT_OK(Push(TestRoot(12)));
  files_.Heal();
  EXPECT_TRUE(HealsAfter(absl::Seconds(5)));
  ExpectEverythingWorks();
}

}  // namespace
}  // namespace pagoda
