// Goal: a full store gives up the right pages, never a held one, and loses none that fits on SSD.
// Method: pages of 400 KB into 16 MiB of host memory, with and without SSD.
#include <gtest/gtest.h>

#include "storage/testing/store_fixture.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

using absl::StatusCode;
using TieredStorePressureTest = StoreTest;

// ---- Pressure -----------------------------------------------------------------------------------

TestPage Big(uint32_t token) {
  TestPage page = TestRoot(token);
  page.segment_bytes = 200000;  // about 400 KB a page: some 40 fill the tier
  return page;
}

TEST_F(TieredStorePressureTest, HostMemoryAloneForgetsTheOldestAndKeepsTakingPages) {
  OpenWithoutSsd();
  for (uint32_t i = 1; i <= 120; ++i) PAGODA_ASSERT_OK(Push(Big(i))) << i;
  EXPECT_NE(Get(Big(120)), nullptr);
  EXPECT_EQ(Get(Big(1)), nullptr);
  ExpectExact();
}

TEST_F(TieredStorePressureTest, DemotionWritesPagesToSsdAndLosesNone) {
  Open();
  const int count = 90;
  for (uint32_t i = 1; i <= count; ++i) {
    ASSERT_TRUE(Eventually([&] { return Push(Big(i)).ok(); })) << i;
  }
  EXPECT_EQ(store_->Stats().page_count, count);
  ASSERT_TRUE(Eventually([&] {
    const StoreStats stats = store_->Stats();
    return stats.host.used_bytes < 0.85 * static_cast<double>(stats.host.capacity_bytes);
  }));
  EXPECT_GT(store_->Stats().counters.demoted_bytes, 0);
  for (uint32_t i = 1; i <= count; ++i) {
    absl::StatusOr<HostPagePtr> page = absl::UnknownError("");
    ASSERT_TRUE(Eventually([&] {
      page = Load(Big(i));
      return page.ok();
    })) << i
        << page.status();
    ASSERT_TRUE(IsExactly(**page, Big(i))) << i;
  }
  ExpectExact();
}

// Found by tests/simulation: a page that is on SSD alone was evicted there together with the copy
// of the page that follows it, which was in memory too and stayed.
TEST_F(TieredStorePressureTest, SsdKeepsWhatAPageInMemoryFollows) {
  Open();
  const TestPage parent = Big(1);
  const TestPage child = parent.Child(2);
  PAGODA_ASSERT_OK(Push(parent));
  PAGODA_ASSERT_OK(Push(child));
  PersistAll({parent, child});
  DropFromHost();
  PAGODA_ASSERT_OK(Load(child));
  ASSERT_EQ(Get(parent), nullptr);
  const HostPagePtr reader = Get(child);  // stays in memory
  for (uint32_t i = 3; i < 200; ++i) {    // more than SSD holds
    ASSERT_TRUE(Eventually([&] { return Push(Big(i)).ok(); })) << i;
    ASSERT_TRUE(
        Eventually([&] { return store_->PersistAsync(Big(i).record(), Big(i).scope()).ok(); }));
  }
  PAGODA_ASSERT_OK(store_->Flush());
  EXPECT_GT(store_->Stats().counters.evictions[static_cast<int>(TierKind::kSsd)][0][0], 0);
  EXPECT_EQ(Lookup({parent, child}).pages.size(), 2u);
}

TEST_F(TieredStorePressureTest, ChainsAreDemotedFromTheirLeaves) {
  OpenWithoutSsd();
  TestPage like = Big(1);
  const std::vector<TestPage> chain = TestChain(100, 1, like);
  size_t pushed = 0;
  while (pushed < chain.size() && Push(chain[pushed]).ok()) ++pushed;
  // The chain cannot grow beyond the tier: its own leaf is the only victim. What is there is a
  // prefix without a hole.
  const size_t prefix = Lookup(chain).pages.size();
  EXPECT_EQ(static_cast<int64_t>(prefix), store_->Stats().page_count);
  EXPECT_GT(prefix, 20u);
}

TEST_F(TieredStorePressureTest, LeasedAndPinnedPagesAreNeverEvicted) {
  OpenWithoutSsd();
  std::vector<TestPage> kept;
  for (uint32_t i = 1; i <= 10; ++i) {
    kept.push_back(Big(i));
    PAGODA_ASSERT_OK(Push(kept.back()));
    if (i % 2 == 0) {
      PAGODA_ASSERT_OK(store_->Pin(kept.back().record(), kept.back().scope()));
    } else {
      Lookup({kept.back()}, Precision::kNone, Precision::kNone,
             {"session", std::to_string(i), absl::Minutes(1)});
    }
  }
  for (uint32_t i = 100; i < 200; ++i) PAGODA_ASSERT_OK(Push(Big(i))) << i;
  for (const TestPage& page : kept) EXPECT_TRUE(IsExactly(*Get(page), page));
}

TEST_F(TieredStorePressureTest, WhenEverythingIsHeldStageRefusesAndChangesNothing) {
  OpenWithoutSsd();
  std::vector<TestPage> pinned;
  absl::Status refused;
  for (uint32_t i = 1; refused.ok() && i < 1000; ++i) {
    refused = Push(Big(i)).status();
    // A page may be given up again before it is pinned: memory is short by then.
    if (refused.ok() && store_->Pin(Big(i).record(), Big(i).scope()).ok()) pinned.push_back(Big(i));
  }
  EXPECT_THAT(refused, StatusIs(StatusCode::kResourceExhausted, "host tier: asked"));
  EXPECT_EQ(store_->Stats().counters.stage_refusals, 1);
  EXPECT_EQ(store_->Stats().page_count, static_cast<int64_t>(pinned.size()));
  ExpectExact();
  PAGODA_ASSERT_OK(store_->Unpin(pinned[0].record(), pinned[0].scope()));
  PAGODA_EXPECT_OK(Push(Big(1000)));
  EXPECT_EQ(Get(pinned[0]), nullptr);
}

TEST_F(TieredStorePressureTest, PagesInUseAreNotGivenUpForNothing) {
  OpenWithoutSsd();
  std::vector<HostPagePtr> readers;
  for (uint32_t i = 1; i <= 10; ++i) {
    PAGODA_ASSERT_OK(Push(Big(i)));
    readers.push_back(Get(Big(i)));
  }
  for (uint32_t i = 100; i < 200; ++i) PAGODA_ASSERT_OK(Push(Big(i))) << i;
  for (uint32_t i = 1; i <= 10; ++i) EXPECT_NE(Get(Big(i)), nullptr) << i;
}

TEST_F(TieredStorePressureTest, ManySizesAndScopesDoNotFillTheTierForGood) {
  OpenWithoutSsd();  // 16 chunks of 1 MiB, and every scope and size class wants its own
  for (uint32_t i = 1; i <= 200; ++i) {
    TestPage page = TestRoot(i);
    page.tenant = std::string(1, static_cast<char>('a' + i % 7));
    page.segment_bytes = 4000 + i % 5 * 30000;
    PAGODA_ASSERT_OK(Push(page)) << i;
  }
  ExpectExact();
}

TEST_F(TieredStorePressureTest, SsdStaysBelowItsCapacityLeafFirst) {
  options_.ssd.capacity_bytes = 8 << 20;  // some 20 pages
  Open();
  const std::vector<TestPage> chain = TestChain(8, 1, Big(1));
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll(chain);
  for (uint32_t i = 100; i < 160; ++i) {
    PAGODA_ASSERT_OK(Push(Big(i)));
    PersistAll({Big(i)});
    ASSERT_LE(store_->Stats().ssd.used_bytes, 8 << 20);
  }
  ExpectExact();
  Open();
  EXPECT_EQ(store_->Stats().counters.evictions[static_cast<int>(TierKind::kSsd)]
                                              [static_cast<int>(EvictionReason::kOrphan)][0],
            0);
  EXPECT_GT(store_->Stats().ssd.page_count, 10);
}

TEST_F(TieredStorePressureTest, SmallerSsdCapacityIsMetAfterARestart) {
  Open();
  for (uint32_t i = 1; i <= 20; ++i) {
    PAGODA_ASSERT_OK(Push(Big(i)));
    PersistAll({Big(i)});
  }
  options_.ssd.capacity_bytes = 4 << 20;
  Open();
  EXPECT_TRUE(Eventually([&] { return store_->Stats().ssd.used_bytes <= 4 << 20; }));
  ExpectExact();
}

TEST_F(TieredStorePressureTest, RefusesBadOptionsByName) {
  const auto with = [&](auto change) {
    TieredStoreOptions options = options_;
    change(options);
    return TieredStore::Open(options).status();
  };
  const auto kInvalid = StatusCode::kInvalidArgument;
  EXPECT_THAT(with([](auto& o) { o.host.capacity_bytes = 1; }), StatusIs(kInvalid, "capacity"));
  EXPECT_THAT(with([](auto& o) { o.policies.host.marks.stop = 0.9; }),
              StatusIs(kInvalid, "watermarks"));
  EXPECT_THAT(with([](auto& o) { o.policies.ssd.marks.hard = 2; }),
              StatusIs(kInvalid, "watermarks"));
  EXPECT_THAT(with([](auto& o) { o.loader_threads = 0; }), StatusIs(kInvalid, "loader_threads"));
  EXPECT_THAT(with([](auto& o) { o.write_queue_pages_max = 0; }),
              StatusIs(kInvalid, "write_queue_pages_max"));
  EXPECT_THAT(with([](auto& o) { o.leases.leases_max = 0; }), StatusIs(kInvalid, "leases_max"));
  EXPECT_THAT(with([](auto& o) { o.ssd.background_jobs = 0; }), StatusIs(kInvalid, "ssd"));
}

}  // namespace
}  // namespace pagoda
