// The fixture of all store tests: a real host tier, a real SSD folder, a clock that the test moves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/testing/temp_folder.h"
#include "storage/testing/test_pages.h"
#include "storage/tiered_store.h"

namespace pagoda {

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    options_.host.capacity_bytes = 16 << 20;
    options_.ssd.path = folder_.Sub("ssd");
    options_.ssd.capacity_bytes = 64 << 20;
    options_.ssd.flush_period = absl::ZeroDuration();
    options_.demotion_period = absl::Milliseconds(5);
  }
  void Open() {
    store_ = nullptr;
    auto store = TieredStore::Open(options_, clock_);
    PAGODA_EXPECT_OK(store);
    if (store.ok()) store_ = *std::move(store);
  }
  void OpenWithoutSsd() {
    options_.ssd.path.clear();
    Open();
  }
  StagedPage Staged(const TestPage& page) {
    StagedPage staged = *store_->Stage(page.scope(), HeaderOf(page));
    Fill(page, staged);
    return staged;
  }
  absl::StatusOr<CommitOutcome> Push(const TestPage& page, const CommitOptions& options = {}) {
    auto staged = store_->Stage(page.scope(), HeaderOf(page));
    if (!staged.ok()) return staged.status();
    Fill(page, *staged);
    return store_->Commit(*std::move(staged), options);
  }
  HostPagePtr Get(const TestPage& page) { return store_->GetResident(page.record(), page.scope()); }
  absl::StatusOr<HostPagePtr> Load(const TestPage& page) {
    absl::StatusOr<HostPagePtr> result = absl::UnknownError("no answer");
    absl::Notification done;
    store_->LoadAsync(page.record(), page.scope(), [&](absl::StatusOr<HostPagePtr> loaded) {
      result = std::move(loaded);
      done.Notify();
    });
    EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    return result;
  }
  LookupAnswer Lookup(const std::vector<TestPage>& chain, Precision precision = Precision::kNone,
                      Precision fidelity = Precision::kNone, LeaseTerms lease = {}) {
    std::vector<RecordKey> keys;
    for (const TestPage& page : chain) keys.push_back(page.record());
    LookupQuery query;
    query.scope = chain[0].scope();
    query.keys = keys;
    query.precision_min = precision;
    query.fidelity_min = fidelity;
    query.lease = std::move(lease);
    const auto answer = store_->LookupPrefix(query);
    PAGODA_EXPECT_OK(answer);
    return answer.ok() ? *answer : LookupAnswer{};
  }
  void PersistAll(const std::vector<TestPage>& pages) {
    for (const TestPage& page : pages) {
      PAGODA_EXPECT_OK(store_->PersistAsync(page.record(), page.scope()));
    }
    PAGODA_EXPECT_OK(store_->Flush());
  }
  void DropFromHost() {
    PageFilter filter;
    filter.tier = TierKind::kHost;
    store_->Evict(filter);
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 3000; ++i) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return false;
  }
  // Everything that can be counted twice agrees.
  void ExpectExact() {
    PAGODA_EXPECT_OK(store_->Flush());
    PAGODA_EXPECT_OK(store_->CheckAccounting());
    const StoreStats stats = store_->Stats();
    int64_t host = 0;
    int64_t ssd = 0;
    int64_t count = 0;
    std::set<PageKey> keys;
    std::set<PageKey> parents;
    store_->ForEachPage([&](const PageInfo& page) {
      keys.insert(page.record.key);
      if (!page.parent_is_root) parents.insert(page.parent);
      host += page.host_bytes;
      ssd += page.ssd_bytes;
      ++count;
    });
    EXPECT_EQ(stats.host.page_bytes, host);
    EXPECT_EQ(stats.host.used_bytes, host + stats.host.staged_bytes + stats.host.lingering_bytes);
    EXPECT_EQ(stats.ssd.page_bytes, ssd);
    EXPECT_EQ(stats.ssd.used_bytes, ssd);
    EXPECT_EQ(stats.page_count, count);
    // No page without those before it.
    EXPECT_TRUE(std::includes(keys.begin(), keys.end(), parents.begin(), parents.end()));
  }

  TempFolder folder_;
  FakeClock clock_;
  TieredStoreOptions options_;
  std::unique_ptr<TieredStore> store_;
};

}  // namespace pagoda
