// Goal: pages survive a restart, damage is found, loads are shared and bounded. Method: close and
// open the same folder; damage is done to the files behind the store's back.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "storage/testing/raw_ssd.h"
#include "storage/testing/store_fixture.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

using absl::StatusCode;
using TieredStoreSsdTest = StoreTest;

// ---- SSD ----------------------------------------------------------------------------------------

TEST_F(TieredStoreSsdTest, PersistedPagesComeBackAfterARestart) {
  Open();
  const std::vector<TestPage> chain = TestChain(4);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  EXPECT_EQ(store_->Stats().dirty_page_count, 4);
  PersistAll(chain);
  EXPECT_EQ(store_->Stats().dirty_page_count, 0);
  const std::string instance = store_->ssd_instance_id();
  Open();
  EXPECT_EQ(store_->ssd_instance_id(), instance);
  const LookupAnswer answer = Lookup(chain);
  ASSERT_EQ(answer.pages.size(), 4u);
  EXPECT_EQ(answer.pages[0].tier, TierKind::kSsd);
  EXPECT_EQ(answer.pages[0].state, PageState::kLoading);
  EXPECT_EQ(Get(chain[0]), nullptr);
  for (const TestPage& page : chain) EXPECT_TRUE(IsExactly(**Load(page), page));
  EXPECT_EQ(Lookup(chain).pages[3].state, PageState::kReady);
  EXPECT_EQ(store_->Stats().dirty_page_count, 0);
  ExpectExact();
}

TEST_F(TieredStoreSsdTest, ShutdownWritesWhatIsOnlyInHostMemory) {
  Open();
  const std::vector<TestPage> chain = TestChain(4);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PAGODA_EXPECT_OK(store_->Shutdown(absl::Seconds(30)));
  PAGODA_EXPECT_OK(store_->Shutdown(absl::Seconds(30)));
  EXPECT_THAT(Push(TestRoot(9)), StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT(Load(chain[0]), StatusIs(StatusCode::kUnavailable));
  EXPECT_TRUE(Lookup(chain).pages.empty());
  Open();
  EXPECT_EQ(Lookup(chain).pages.size(), 4u);
  ExpectExact();
}

TEST_F(TieredStoreSsdTest, ShutdownWithoutTimeWritesNothingButIsClean) {
  Open();
  PAGODA_ASSERT_OK(Push(TestRoot(1)));
  PAGODA_EXPECT_OK(store_->Shutdown(absl::ZeroDuration()));
  Open();
  EXPECT_TRUE(Lookup({TestRoot(1)}).pages.empty());
  ExpectExact();
}

TEST_F(TieredStoreSsdTest, OrphansAndDamagedRecordsAreDeletedAtStart) {
  Open();
  const std::vector<TestPage> chain = TestChain(5);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll(chain);
  store_ = nullptr;
  { RawSsd(options_.ssd.path).PutMeta(chain[2].record().Encode(), "damaged"); }
  Open();
  EXPECT_EQ(Lookup(chain).pages.size(), 2u);
  const StoreCounters counters = store_->Stats().counters;
  const auto ssd = static_cast<int>(TierKind::kSsd);
  EXPECT_EQ(counters.evictions[ssd][static_cast<int>(EvictionReason::kOrphan)][0], 2);
  EXPECT_EQ(counters.integrity_failures[ssd][static_cast<int>(IntegrityKind::kRecord)], 1);
  EXPECT_EQ(store_->Stats().ssd.page_count, 2);
  ExpectExact();
  Open();
  EXPECT_EQ(store_->Stats().ssd.page_count, 2);
  ExpectExact();
}

TEST_F(TieredStoreSsdTest, BrokenBytesAreDroppedCountedAndCanBePushedAgain) {
  Open();
  const std::vector<TestPage> chain = TestChain(3);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll(chain);
  store_ = nullptr;
  {
    RawSsd raw(options_.ssd.path);
    raw.FlipBit(chain[1].record(), 0, 56);
  }
  Open();
  EXPECT_EQ(Lookup(chain).pages.size(), 3u);
  EXPECT_THAT(Load(chain[1]), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(Load(chain[1]), StatusIs(StatusCode::kNotFound));
  EXPECT_EQ(Lookup(chain).pages.size(), 1u);
  EXPECT_EQ(store_->Stats().counters.integrity_failures[static_cast<int>(TierKind::kSsd)]
                                                       [static_cast<int>(IntegrityKind::kSegment)],
            1);
  EXPECT_EQ(*Push(chain[1]), CommitOutcome::kStored);
  EXPECT_EQ(Lookup(chain).pages.size(), 3u);  // what followed is reachable again
  EXPECT_TRUE(IsExactly(**Load(chain[2]), chain[2]));
  ExpectExact();
}

TEST_F(TieredStoreSsdTest, ManyLoadsOfOnePageReadItOnce) {
  options_.loader_threads = 1;
  Open();
  const std::vector<TestPage> pages = {TestRoot(1), TestRoot(2)};
  for (const TestPage& page : pages) PAGODA_ASSERT_OK(Push(page));
  PersistAll(pages);
  DropFromHost();
  // The first page's callback holds the only loader while the second page is asked for.
  absl::Notification blocked;
  absl::Notification release;
  store_->LoadAsync(pages[0].record(), pages[0].scope(), [&](absl::StatusOr<HostPagePtr>) {
    blocked.Notify();
    release.WaitForNotification();
  });
  blocked.WaitForNotification();
  std::atomic<int> answers{0};
  for (int i = 0; i < 10; ++i) {
    store_->LoadAsync(pages[1].record(), pages[1].scope(), [&](absl::StatusOr<HostPagePtr> page) {
      if (page.ok() && IsExactly(**page, pages[1])) ++answers;
    });
  }
  EXPECT_EQ(answers, 0);
  release.Notify();
  EXPECT_TRUE(Eventually([&] { return answers == 10; }));
  EXPECT_EQ(store_->Stats().counters.loads_started, 2);
  EXPECT_EQ(store_->Stats().counters.loads_joined, 9);
}

TEST_F(TieredStoreSsdTest, FullQueuesRefuse) {
  options_.loader_threads = 1;
  options_.load_queue_max = 1;
  Open();
  const std::vector<TestPage> pages = {TestRoot(1), TestRoot(2), TestRoot(3)};
  for (const TestPage& page : pages) PAGODA_ASSERT_OK(Push(page));
  PersistAll(pages);
  DropFromHost();
  absl::Notification blocked;
  absl::Notification release;
  store_->LoadAsync(pages[0].record(), pages[0].scope(), [&](absl::StatusOr<HostPagePtr>) {
    blocked.Notify();
    release.WaitForNotification();
  });
  blocked.WaitForNotification();
  std::atomic<bool> second{false};
  store_->LoadAsync(pages[1].record(), pages[1].scope(),
                    [&](absl::StatusOr<HostPagePtr>) { second = true; });
  EXPECT_THAT(Load(pages[2]), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_EQ(store_->Stats().counters.load_queue_refusals, 1);
  release.Notify();
  EXPECT_TRUE(Eventually([&] { return second.load(); }));
  PAGODA_EXPECT_OK(Load(pages[2]));
}

TEST_F(TieredStoreSsdTest, PendingLoadsAreAnsweredAtShutdown) {
  options_.loader_threads = 1;
  Open();
  const std::vector<TestPage> pages = {TestRoot(1), TestRoot(2)};
  for (const TestPage& page : pages) PAGODA_ASSERT_OK(Push(page));
  PersistAll(pages);
  DropFromHost();
  absl::Notification blocked;
  absl::Notification release;
  store_->LoadAsync(pages[0].record(), pages[0].scope(), [&](absl::StatusOr<HostPagePtr>) {
    blocked.Notify();
    release.WaitForNotification();
  });
  blocked.WaitForNotification();
  absl::Status answer;
  store_->LoadAsync(pages[1].record(), pages[1].scope(),
                    [&](absl::StatusOr<HostPagePtr> page) { answer = page.status(); });
  std::thread closer([&] { PAGODA_EXPECT_OK(store_->Shutdown(absl::Seconds(30))); });
  EXPECT_TRUE(Eventually([&] { return Lookup({pages[0]}).pages.empty(); }));  // it is closing
  release.Notify();
  closer.join();
  EXPECT_THAT(answer, StatusIs(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace pagoda
