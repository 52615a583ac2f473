// Goal: what runs out is refused in words, counted, and forgotten once there is room again; and
// leases do not care what the wall clock says. Method: an observer that holds the writer thread
// still, so that its queue fills; a clock whose wall time jumps.
#include <atomic>

#include "storage/testing/store_fixture.h"

namespace pagoda {
namespace {

// Holds the writer after its first page until it is released.
class HeldWriter : public StoreObserver {
 public:
  void OnSsdWrite(absl::Duration, int64_t, bool) override {
    if (!holding_.exchange(false)) return;
    reached_.Notify();
    released_.WaitForNotification();
  }
  void OnWriteQueueFull() override { ++refusals_; }

  void AwaitReached() { reached_.WaitForNotification(); }
  void Release() { released_.Notify(); }
  int refusals() const { return refusals_; }

 private:
  std::atomic<bool> holding_{true};
  std::atomic<int> refusals_{0};
  absl::Notification reached_;
  absl::Notification released_;
};

class JumpingClock : public FakeClock {
 public:
  int64_t UnixSeconds() const override { return FakeClock::UnixSeconds() + jump_seconds_; }
  void JumpWallClock(int64_t seconds) { jump_seconds_ += seconds; }

 private:
  std::atomic<int64_t> jump_seconds_{0};
};

class LimitsTest : public StoreTest {
 protected:
  void OpenWatched(StoreObserver* observer, const Clock& clock) {
    store_ = nullptr;
    auto store = TieredStore::Open(options_, clock, observer);
    PAGODA_ASSERT_OK(store);
    store_ = *std::move(store);
  }
};

TEST_F(LimitsTest, AFullPersistQueueRefusesAndRecovers) {
  HeldWriter writer;
  options_.writer_threads = 1;
  options_.write_queue_pages_max = 1;
  OpenWatched(&writer, clock_);
  PAGODA_ASSERT_OK(store_->Flush());  // what Open() queued is done
  const std::vector<TestPage> pages = {TestRoot(1), TestRoot(2), TestRoot(3)};
  for (const TestPage& page : pages) PAGODA_ASSERT_OK(Push(page));
  const auto persist = [&](int i) {
    return store_->PersistAsync(pages[i].record(), pages[i].scope());
  };
  PAGODA_ASSERT_OK(persist(0));
  writer.AwaitReached();
  PAGODA_ASSERT_OK(persist(1));  // waits: the queue is full
  PAGODA_EXPECT_OK(persist(1));  // again is no second place in it
  EXPECT_THAT(persist(2), StatusIs(absl::StatusCode::kResourceExhausted, "at most that many"));
  EXPECT_EQ(writer.refusals(), 1);
  EXPECT_EQ(store_->Stats().counters.write_queue_refusals, 1);
  EXPECT_NE(Get(pages[2]), nullptr);  // stays in memory, dirty
  writer.Release();
  PAGODA_ASSERT_OK(store_->Flush());
  PAGODA_EXPECT_OK(persist(2));
  ExpectExact();
  EXPECT_EQ(store_->Stats().dirty_page_count, 0);
  DropFromHost();
  for (const TestPage& page : pages) {
    const auto loaded = Load(page);
    PAGODA_ASSERT_OK(loaded);
    EXPECT_TRUE(IsExactly(**loaded, page));
  }
  store_ = nullptr;  // before the observer
}

TEST_F(LimitsTest, LeasesDoNotCareForWallClockJumps) {
  JumpingClock clock;
  OpenWatched(nullptr, clock);
  const std::vector<TestPage> chain = TestChain(2);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  const LookupAnswer answer =
      Lookup(chain, Precision::kNone, Precision::kNone, {"session", "request", absl::Seconds(10)});
  ASSERT_NE(answer.lease, 0u);
  for (const int64_t jump : {86400, -90000, 10 * 365 * 86400}) {
    clock.JumpWallClock(jump);
    EXPECT_EQ(store_->ExpireLeases(), 0) << jump;
    EXPECT_EQ(store_->Stats().leased_page_count, 2) << jump;
    PAGODA_EXPECT_OK(store_->RenewLease("session", answer.lease, absl::Seconds(10)));
  }
  PAGODA_EXPECT_OK(store_->GetLeased("session", answer.lease, chain[0].record()));
  clock.JumpWallClock(-86400);
  clock.Advance(absl::Seconds(11));
  store_->ExpireLeases();  // or the background loop, which may be first
  EXPECT_EQ(store_->Stats().leased_page_count, 0);
  EXPECT_EQ(store_->Stats().counters.leases_expired, 1);
}

}  // namespace
}  // namespace pagoda
