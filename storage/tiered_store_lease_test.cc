// Goal: leases and pins hold exactly what they name, for exactly as long; removal takes what it
// says. Method: every way to end a lease, every filter, with the locks and sums afterwards.
#include <gtest/gtest.h>

#include <map>

#include "storage/testing/store_fixture.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

using absl::StatusCode;
using TieredStoreLeaseTest = StoreTest;

// ---- Leases, pins, removal ----------------------------------------------------------------------

TEST_F(TieredStoreLeaseTest, LeaseHoldsItsPagesUntilItEnds) {
  OpenWithoutSsd();
  const std::vector<TestPage> chain = TestChain(2);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  const LeaseTerms terms{"session", "request", absl::Seconds(10)};
  const LookupAnswer answer = Lookup(chain, Precision::kNone, Precision::kNone, terms);
  ASSERT_NE(answer.lease, 0u);
  EXPECT_EQ(store_->LeasedKeys("session", answer.lease, 0, 2)->size(), 2u);
  EXPECT_THAT(store_->GetLeased("other", answer.lease, chain[0].record()),
              StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(store_->GetLeased("session", answer.lease, TestRoot(9).record()),
              StatusIs(StatusCode::kNotFound, "does not name"));
  EXPECT_EQ(store_->Stats().host.pinned_bytes, store_->Stats().host.page_bytes);
  // Removal makes the pages invisible; the lease still reads them.
  PAGODA_EXPECT_OK(store_->Remove(chain[0].record(), chain[0].scope()));
  EXPECT_EQ(store_->Stats().page_count, 0);
  EXPECT_TRUE(IsExactly(**store_->GetLeased("session", answer.lease, chain[1].record()), chain[1]));
  EXPECT_GT(store_->Stats().host.used_bytes, 0);
  PAGODA_EXPECT_OK(Push(chain[0]));  // another incarnation: the old lease has no hold on it
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(store_->GetLeased("session", answer.lease, chain[0].record()),
              StatusIs(StatusCode::kNotFound));
  EXPECT_TRUE(Eventually([&] { return store_->Stats().lease_count == 0; }));
  EXPECT_EQ(store_->Stats().counters.leases_expired, 1);
  EXPECT_EQ(store_->Stats().leased_page_count, 0);
  ExpectExact();
}

TEST_F(TieredStoreLeaseTest, SameRequestRenewsItsLeaseAndAMissEndsIt) {
  OpenWithoutSsd();
  PAGODA_ASSERT_OK(Push(TestRoot(1)));
  const LeaseTerms terms{"session", "request", absl::Seconds(10)};
  const auto lookup = [&](Precision precision) {
    return Lookup({TestRoot(1)}, precision, Precision::kNone, terms).lease;
  };
  const LeaseId id = lookup(Precision::kNone);
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(lookup(Precision::kNone), id);
  clock_.Advance(absl::Seconds(9));
  PAGODA_EXPECT_OK(store_->RenewLease("session", id, absl::Seconds(10)));
  EXPECT_EQ(store_->Stats().lease_count, 1);
  EXPECT_EQ(lookup(Precision::kOpaque), 0u);
  EXPECT_EQ(store_->Stats().lease_count, 0);
  EXPECT_EQ(store_->Stats().leased_page_count, 0);
}

TEST_F(TieredStoreLeaseTest, EveryWayToReleaseUnlocks) {
  OpenWithoutSsd();
  const TestPage page = TestRoot(1);
  PAGODA_ASSERT_OK(Push(page));
  const RecordKey key = page.record();
  const auto acquire = [&] {
    return *store_->AcquireLease(page.scope(), {key}, {"session", "request", absl::Seconds(10)});
  };
  const auto locked = [&] { return store_->Stats().host.pinned_bytes > 0; };
  const LeaseId id = acquire();
  EXPECT_TRUE(locked());
  EXPECT_EQ(store_->ReleaseLease("other", id), 0);
  EXPECT_TRUE(locked());
  EXPECT_EQ(store_->ReleaseLease("session", id), 1);
  EXPECT_FALSE(locked());
  acquire();
  EXPECT_EQ(store_->ReleaseRequest("session", "request"), 1);
  EXPECT_FALSE(locked());
  acquire();
  EXPECT_EQ(store_->ReleaseSession("session"), 1);
  EXPECT_FALSE(locked());
  EXPECT_THAT(store_->AcquireLease(page.scope(), {key, TestRoot(2).record()},
                                   {"session", "request", absl::Seconds(10)}),
              StatusIs(StatusCode::kAborted, "page 1 of 2"));
}

TEST_F(TieredStoreLeaseTest, LeaseOnSsdPageGetsItWhenItIsLoaded) {
  Open();
  const TestPage page = TestRoot(1);
  PAGODA_ASSERT_OK(Push(page));
  PersistAll({page});
  DropFromHost();
  const LeaseId id =
      Lookup({page}, Precision::kNone, Precision::kNone, {"session", "request", absl::Seconds(10)})
          .lease;
  EXPECT_EQ(*store_->GetLeased("session", id, page.record()), nullptr);
  PAGODA_EXPECT_OK(Load(page));
  EXPECT_TRUE(IsExactly(**store_->GetLeased("session", id, page.record()), page));
  EXPECT_EQ(store_->Stats().host.pinned_bytes, HeaderOf(page).stored_bytes());
}

TEST_F(TieredStoreLeaseTest, RemoveTakesWhatFollowsAndOnlyThat) {
  Open();
  const std::vector<TestPage> chain = TestChain(4);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  const TestPage sibling = chain[0].Child(77);
  PAGODA_ASSERT_OK(Push(sibling));
  PersistAll(chain);
  const auto removed = store_->Remove(chain[1].record(), chain[1].scope());
  PAGODA_ASSERT_OK(removed);
  EXPECT_EQ(removed->page_count, 3);
  EXPECT_EQ(removed->host_bytes, removed->ssd_bytes);
  EXPECT_EQ(Lookup(chain).pages.size(), 1u);
  EXPECT_NE(Get(sibling), nullptr);
  ExpectExact();
  Open();
  EXPECT_EQ(Lookup(chain).pages.size(), 1u);
}

TEST_F(TieredStoreLeaseTest, EvictFollowsItsFilter) {
  Open();
  TestPage other = TestRoot(1);
  other.tenant = "other";
  const std::vector<TestPage> chain = TestChain(3);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PAGODA_ASSERT_OK(Push(other));
  PersistAll(chain);
  PageFilter filter;
  filter.scope = other.scope();
  EXPECT_EQ(store_->Evict(filter).page_count, 1);
  EXPECT_EQ(Get(other), nullptr);
  // Pinned pages stay when asked, and so do the pages before them.
  PAGODA_ASSERT_OK(store_->Pin(chain[1].record(), chain[1].scope()));
  filter = {};
  filter.keep_locked = true;
  EXPECT_EQ(store_->Evict(filter).page_count, 1);
  EXPECT_EQ(Lookup(chain).pages.size(), 2u);
  PAGODA_ASSERT_OK(store_->Unpin(chain[1].record(), chain[1].scope()));
  filter.tier = TierKind::kSsd;
  EXPECT_EQ(store_->Evict(filter).page_count, 2);
  EXPECT_EQ(store_->Stats().ssd.page_count, 0);
  EXPECT_EQ(store_->Stats().dirty_page_count, 2);
  ExpectExact();
  filter = {};
  filter.identity = Identity{};
  EXPECT_EQ(store_->Evict(filter).page_count, 0);
  EXPECT_EQ(store_->Evict({}).page_count, 2);
  EXPECT_EQ(store_->Stats().host.used_bytes, 0);
}

TEST_F(TieredStoreLeaseTest, ListingNamesEveryPage) {
  Open();
  const std::vector<TestPage> chain = TestChain(3);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll({chain[0]});
  PAGODA_ASSERT_OK(store_->Pin(chain[1].record(), chain[1].scope()));
  clock_.Advance(absl::Seconds(5));
  std::map<uint64_t, PageInfo> seen;
  store_->ForEachPage([&](const PageInfo& page) { seen[page.base_position] = page; });
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_TRUE(seen[0].parent_is_root);
  EXPECT_FALSE(seen[0].dirty);
  EXPECT_TRUE(seen[0].on_ssd);
  EXPECT_TRUE(seen[64].dirty);
  EXPECT_TRUE(seen[64].pinned);
  EXPECT_EQ(seen[64].parent, chain[0].record().key);
  EXPECT_EQ(seen[128].record, chain[2].record());
  EXPECT_EQ(seen[128].idle, absl::Seconds(5));
  EXPECT_EQ(seen[128].pusher, HeaderOf(chain[2]).pusher);
  EXPECT_EQ(seen[128].host_bytes, HeaderOf(chain[2]).stored_bytes());
}

TEST_F(TieredStoreLeaseTest, AListingThatEndsEarlyGoesOnThere) {
  Open();
  const std::vector<TestPage> chain = TestChain(5);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll({chain[3]});
  std::vector<uint64_t> seen;
  const auto take = [&](size_t most) {
    return [&seen, most](const PageInfo& page) {
      if (seen.size() == most) return false;
      EXPECT_EQ(page.to_write, page.base_position != 3 * 64);
      seen.push_back(page.base_position / 64);
      return true;
    };
  };
  EntryId next = store_->ScanPages(1, take(2));
  next = store_->ScanPages(next, take(4));
  EXPECT_EQ(seen, std::vector<uint64_t>({0, 1, 2, 3}));
  seen.clear();
  EXPECT_EQ(store_->ScanPages(next, take(100)), next);  // once around
  EXPECT_EQ(seen, std::vector<uint64_t>({4, 0, 1, 2, 3}));
  store_->ScanPages(1000000, take(5));
  EXPECT_EQ(seen.size(), 5u);
}

}  // namespace
}  // namespace pagoda
