// Goal: memory follows the pages: when they shrink, their chunks come back, and nobody who reads or
// leases a page notices. Method: mixes of precisions that shift under a small budget, with readers,
// leases and several scopes; every byte and every sum is checked afterwards.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "storage/testing/store_fixture.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

constexpr int64_t kMiB = 1 << 20;

class TieredStoreCompactTest : public StoreTest {
 protected:
  // Two segments of 102400 bytes in raw16: ten fill a chunk of 1 MiB.
  static TestPage Page(uint32_t token, const std::string& tenant = "acme") {
    TestPage page = TestRoot(token);
    page.tenant = tenant;
    page.segment_bytes = 100000;
    return page;
  }
  // Pushes tokens [first, first + count) and remembers them as they are.
  void PushPages(uint32_t first, uint32_t count, const std::string& tenant = "acme") {
    for (uint32_t i = first; i < first + count; ++i) {
      const TestPage page = Page(i, tenant);
      PAGODA_ASSERT_OK(Push(page)) << i;
      stored_[i] = page;
    }
  }
  void Shrink(uint32_t token, Precision precision) {
    TestPage& page = stored_.at(token);
    const HostPagePtr old = Get(page);
    ASSERT_NE(old, nullptr) << token;
    TestPage smaller = page;
    smaller.precision = precision;
    const absl::Status status = store_->ReplaceEncoding(old, Staged(smaller));
    PAGODA_ASSERT_OK(status) << token;
    page = smaller;
  }
  void Drop(uint32_t token) {
    PAGODA_ASSERT_OK(store_->Remove(stored_.at(token).record(), stored_.at(token).scope()));
    stored_.erase(token);
  }
  void ExpectAllExact() {
    for (const auto& [token, page] : stored_) {
      const HostPagePtr host = Get(page);
      ASSERT_NE(host, nullptr) << token;
      EXPECT_TRUE(IsExactly(*host, page)) << token;
    }
    ExpectExact();
  }
  // Lets compaction spend: its budget grows with the clock.
  bool EventuallyCompacted(const std::function<bool()>& condition) {
    return Eventually([&] {
      clock_.Advance(absl::Milliseconds(100));
      return condition();
    });
  }

  std::map<uint32_t, TestPage> stored_;
};

TEST_F(TieredStoreCompactTest, MemoryFollowsTheMixOfPrecisions) {
  OpenWithoutSsd();
  PushPages(1, 60);  // 12 chunks of segments, one of headers
  EXPECT_GE(store_->Stats().host.reserved_bytes, 12 * kMiB);
  for (uint32_t i = 1; i <= 60; ++i) {
    if (i % 3 != 0) Shrink(i, Precision::kQ8);  // holes in every chunk
  }
  ExpectAllExact();
  PushPages(101, 18);
  EXPECT_GT(store_->Stats().counters.compacted_bytes, 0);
  EXPECT_GT(store_->Stats().counters.compacted_chunks, 0);
  for (auto& [token, page] : stored_) Shrink(token, Precision::kQ4);
  // Everything is q4 now: a few chunks hold it, and the rest is free for another tenant.
  PushPages(301, 30, "evil");
  ExpectAllExact();
  EXPECT_EQ(store_->Stats().page_count, 108);  // nothing was dropped on the way
}

TEST_F(TieredStoreCompactTest, HolesAreFilledInTheBackgroundWhenChunksAreScarce) {
  OpenWithoutSsd();
  PushPages(1, 60);
  for (uint32_t i = 1; i <= 60; ++i) {
    if (i % 5 != 0) Drop(i);
  }
  PushPages(101, 2, "b");  // two chunks more: beyond 85 %
  ASSERT_TRUE(
      EventuallyCompacted([&] { return store_->Stats().host.reserved_bytes <= 13 * kMiB; }));
  ExpectAllExact();
}

TEST_F(TieredStoreCompactTest, NothingMovesFasterThanTheBudget) {
  options_.compaction_bytes_per_second = 1;
  OpenWithoutSsd();
  PushPages(1, 60);
  for (uint32_t i = 3; i <= 60; i += 3) Drop(i);
  PushPages(101, 1, "b");
  ASSERT_TRUE(EventuallyCompacted([&] { return store_->host_tier().drained_chunk_count() > 0; }));
  // The debt of that one chunk is paid at a byte a second: for hours nothing moves.
  const int64_t moved = store_->Stats().counters.compacted_bytes;
  EXPECT_LE(moved, kMiB);
  const absl::Time end = absl::Now() + absl::Milliseconds(50);
  while (absl::Now() < end) {
    clock_.Advance(absl::Seconds(1));
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(store_->Stats().counters.compacted_bytes, moved);
}

TEST_F(TieredStoreCompactTest, LeasedAndReadPagesStayWhereTheyAre) {
  OpenWithoutSsd();
  PushPages(1, 60);
  std::map<uint32_t, const HostPage*> places;
  std::vector<HostPagePtr> readers;
  for (uint32_t i = 1; i <= 60; ++i) {
    if (i % 3 == 0) continue;
    if (i % 6 == 1) {
      Lookup({Page(i)}, Precision::kNone, Precision::kNone,
             {"s", std::to_string(i), absl::Hours(9)});
      places[i] = Get(Page(i)).get();
    } else if (i % 6 == 2) {
      readers.push_back(Get(Page(i)));
      places[i] = readers.back().get();
    }
  }
  for (uint32_t i = 3; i <= 60; i += 3) Drop(i);
  PushPages(101, 1, "b");
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(absl::Milliseconds(100));
    absl::SleepFor(absl::Milliseconds(2));
  }
  for (const auto& [token, place] : places) EXPECT_EQ(Get(Page(token)).get(), place) << token;
  ExpectAllExact();
  // Once they are let go, their chunks empty too.
  readers.clear();
  store_->ReleaseSession("s");
  ASSERT_TRUE(
      EventuallyCompacted([&] { return store_->Stats().host.reserved_bytes <= 13 * kMiB; }));
  ExpectAllExact();
  EXPECT_EQ(store_->Stats().host.lingering_bytes, 0);
}

TEST_F(TieredStoreCompactTest, ReadersNeverNoticeWhileEverythingMoves) {
  options_.demotion_period = absl::Milliseconds(1);
  OpenWithoutSsd();
  PushPages(1, 72);
  std::vector<TestPage> pages;
  for (const auto& [token, page] : stored_) pages.push_back(page);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (size_t r = 0; r < 2; ++r) {
    readers.emplace_back([&, r] {
      for (size_t i = r; !stop; i += 7) {
        const TestPage& page = pages[i % pages.size()];
        const HostPagePtr host = Get(page);
        if (host != nullptr && host->precision() == Precision::kRaw16 && !IsExactly(*host, page)) {
          ++wrong;
        }
      }
    });
  }
  for (uint32_t round = 0; round < 6; ++round) {
    for (uint32_t i = 1; i <= 72; ++i) {
      if ((i + round) % 3 != 0) continue;
      store_->Remove(pages[i - 1].record(), pages[i - 1].scope()).IgnoreError();
    }
    for (int i = 0; i < 5; ++i) {
      clock_.Advance(absl::Milliseconds(100));
      PAGODA_EXPECT_OK(store_->CheckAccounting());
      absl::SleepFor(absl::Milliseconds(1));
    }
    for (const TestPage& page : pages) Push(page).IgnoreError();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  ExpectExact();
}

}  // namespace
}  // namespace pagoda
