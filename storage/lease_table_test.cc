// Goal: a lease ends when it should, and what it held is handed back exactly once. Method: every
// way to end, both sides of every limit, and a seeded random run that counts what is held.
#include "storage/lease_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

constexpr absl::Duration kTtl = absl::Seconds(10);
const absl::Duration kStart = absl::Seconds(100);

Lease Ask(const std::string& session, const std::string& request, int page_count = 2) {
  Lease lease;
  lease.session_id = session;
  lease.request_id = request;
  for (int i = 0; i < page_count; ++i) {
    lease.pages.push_back({TestRoot(static_cast<uint32_t>(i)).record(), 1, nullptr});
  }
  return lease;
}

class LeaseTableTest : public ::testing::Test {
 protected:
  LeaseTable table_{{.leases_per_session_max = 2, .leases_max = 3, .pages_per_lease_max = 4}};
  std::vector<LeasedPage> released_;
};

TEST_F(LeaseTableTest, EndsByItself) {
  const LeaseId id = *table_.Grant(Ask("s", "r"), kStart, kTtl, released_);
  EXPECT_NE(table_.Find("s", id, kStart + kTtl - absl::Nanoseconds(1)), nullptr);
  EXPECT_EQ(table_.Find("s", id, kStart + kTtl), nullptr);
  EXPECT_EQ(table_.Expire(kStart + kTtl - absl::Nanoseconds(1), released_), 0);
  EXPECT_TRUE(released_.empty());
  EXPECT_EQ(table_.Expire(kStart + kTtl, released_), 1);
  EXPECT_EQ(released_.size(), 2u);
  EXPECT_EQ(table_.lease_count(), 0);
  EXPECT_EQ(table_.page_count(), 0);
}

TEST_F(LeaseTableTest, RenewExtendsAndComesTooLate) {
  const LeaseId id = *table_.Grant(Ask("s", "r"), kStart, kTtl, released_);
  PAGODA_EXPECT_OK(table_.Renew("s", id, kStart + absl::Seconds(9), kTtl));
  EXPECT_EQ(table_.Expire(kStart + absl::Seconds(18), released_), 0);
  EXPECT_THAT(table_.Renew("s", id, kStart + absl::Seconds(19), kTtl),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(table_.Expire(kStart + absl::Seconds(19), released_), 1);
}

TEST_F(LeaseTableTest, SameRequestRenewsItsOneLease) {
  const LeaseId id = *table_.Grant(Ask("s", "r", 2), kStart, kTtl, released_);
  EXPECT_EQ(*table_.Grant(Ask("s", "r", 3), kStart + absl::Seconds(5), kTtl, released_), id);
  EXPECT_EQ(released_.size(), 2u);
  EXPECT_EQ(table_.lease_count(), 1);
  EXPECT_EQ(table_.page_count(), 3);
  EXPECT_EQ(table_.Expire(kStart + absl::Seconds(14), released_), 0);
  // Another session's request of that name is another one.
  EXPECT_NE(*table_.Grant(Ask("t", "r"), kStart, kTtl, released_), id);
}

TEST_F(LeaseTableTest, AnotherSessionCannotTouchIt) {
  const LeaseId id = *table_.Grant(Ask("s", "r"), kStart, kTtl, released_);
  EXPECT_EQ(table_.Find("t", id, kStart), nullptr);
  EXPECT_THAT(table_.Renew("t", id, kStart, kTtl), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(table_.Release("t", id, released_), 0);
  EXPECT_EQ(table_.ReleaseRequest("t", "r", released_), 0);
  EXPECT_EQ(table_.ReleaseSession("t", released_), 0);
  EXPECT_EQ(table_.Release("s", id, released_), 1);
  EXPECT_EQ(table_.Release("s", id, released_), 0);
  EXPECT_EQ(released_.size(), 2u);
}

TEST_F(LeaseTableTest, LimitsHold) {
  const auto kFull = absl::StatusCode::kResourceExhausted;
  EXPECT_THAT(table_.Grant(Ask("s", "r", 5), kStart, kTtl, released_), StatusIs(kFull, "5 pages"));
  PAGODA_EXPECT_OK(table_.Grant(Ask("s", "1", 4), kStart, kTtl, released_));
  PAGODA_EXPECT_OK(table_.Grant(Ask("s", "2"), kStart, kTtl, released_));
  EXPECT_THAT(table_.Grant(Ask("s", "3"), kStart, kTtl, released_), StatusIs(kFull, "session"));
  PAGODA_EXPECT_OK(table_.Grant(Ask("s", "2"), kStart, kTtl, released_));  // a renewal needs none
  PAGODA_EXPECT_OK(table_.Grant(Ask("t", "1"), kStart, kTtl, released_));
  EXPECT_THAT(table_.Grant(Ask("u", "1"), kStart, kTtl, released_), StatusIs(kFull, "at most 3"));
  EXPECT_EQ(table_.ReleaseSession("s", released_), 2);
  PAGODA_EXPECT_OK(table_.Grant(Ask("u", "1"), kStart, kTtl, released_));
}

TEST_F(LeaseTableTest, PagesAreFoundInAnyOrder) {
  Lease lease = Ask("s", "r", 4);
  for (const uint32_t token : {0, 1, 2, 3, 1, 0, 3}) {
    const LeasedPage* page = lease.FindPage(TestRoot(token).record());
    ASSERT_NE(page, nullptr);
    EXPECT_EQ(page->record, TestRoot(token).record());
  }
  EXPECT_EQ(lease.FindPage(TestRoot(9).record()), nullptr);
  Lease empty = Ask("s", "r", 0);
  EXPECT_EQ(empty.FindPage(TestRoot(0).record()), nullptr);
}

TEST(LeaseTableRandomTest, EveryPageIsHandedBackOnce) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    std::mt19937 rng(seed);
    LeaseTable table(LeaseTable::Options{});
    absl::Duration now = kStart;
    std::vector<LeasedPage> released;
    int64_t granted = 0;
    std::vector<LeaseId> ids = {0};
    for (int step = 0; step < 3000; ++step) {
      const std::string session = absl::StrCat("s", rng() % 5);
      const std::string request = absl::StrCat("r", rng() % 7);
      const LeaseId id = ids[rng() % ids.size()];
      switch (rng() % 8) {
        case 0:
          table.Release(session, id, released);
          break;
        case 1:
          table.ReleaseRequest(session, request, released);
          break;
        case 2:
          if (rng() % 10 == 0) table.ReleaseSession(session, released);
          break;
        case 3:
          table.Renew(session, id, now, kTtl).IgnoreError();
          break;
        case 4:
          now += absl::Milliseconds(rng() % 2000);
          table.Expire(now, released);
          break;
        default:
          const int count = static_cast<int>(rng() % 5);
          ids.push_back(*table.Grant(Ask(session, request, count), now, kTtl, released));
          granted += count;
      }
      ASSERT_EQ(granted, table.page_count() + static_cast<int64_t>(released.size()));
    }
    table.Expire(absl::InfiniteDuration(), released);
    EXPECT_EQ(table.lease_count(), 0);
    EXPECT_EQ(granted, static_cast<int64_t>(released.size())) << "seed " << seed;
  }
}

}  // namespace
}  // namespace pagoda
