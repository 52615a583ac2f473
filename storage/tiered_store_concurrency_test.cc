// Goal: pushers, lookers, loaders, an encoder, an evictor and leases at once: no race, no wrong
// byte, and every byte back at the end. Method: threads with seeded choices over a few chains in a
// tier that is too small for them; every page read is compared with its spec. Run it under TSan.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "storage/testing/store_fixture.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

constexpr int kChainCount = 6;
constexpr int kChainPages = 12;

// The specs of all chains; precision and content follow from what a page says of itself.
std::vector<std::vector<TestPage>> Chains() {
  std::vector<std::vector<TestPage>> chains;
  for (int i = 0; i < kChainCount; ++i) {
    TestPage like;
    like.tenant = i % 2 == 0 ? "acme" : "bolt";
    like.segment_bytes = 60000;
    chains.push_back(TestChain(kChainPages, static_cast<uint32_t>(1000 * i + 1), like));
  }
  return chains;
}

class StoreConcurrencyTest : public StoreTest {
 protected:
  // Whatever encoding it has, it must be that page.
  void Check(const HostPage& page, TestPage spec) {
    spec.precision = page.precision();
    if (!IsExactly(page, spec)) ++wrong_;
  }
  void Start(uint32_t seed, std::function<void(const std::vector<TestPage>&, std::mt19937&)> step) {
    threads_.emplace_back([this, seed, step = std::move(step)] {
      std::mt19937 rng(seed);
      while (!stop_) step(chains_[rng() % chains_.size()], rng);
    });
  }
  // For `duration`, and on a slow machine for as long as it takes until enough has happened.
  void RunFor(absl::Duration duration, const std::function<bool()>& enough) {
    absl::SleepFor(duration);
    for (int i = 0; i < 10 && !Eventually(enough); ++i) {
    }
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  const std::vector<std::vector<TestPage>> chains_ = Chains();
  std::atomic<bool> stop_{false};
  std::atomic<int> wrong_{0};
  std::atomic<int> in_flight_{0};
  std::vector<std::thread> threads_;
};

TEST_F(StoreConcurrencyTest, EverythingAtOnceEndsWhereItBegan) {
  options_.host.capacity_bytes = 8 << 20;  // the chains need 9 MiB
  options_.ssd.capacity_bytes = 7 << 20;
  options_.ssd.flush_period = absl::Milliseconds(50);
  options_.write_queue_pages_max = 8;
  Open();
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    Start(seed, [this](const std::vector<TestPage>& chain, std::mt19937&) {
      for (const TestPage& page : chain) {
        if (stop_ || !Push(page).ok()) break;
        store_->PersistAsync(page.record(), page.scope()).IgnoreError();
      }
    });
  }
  Start(11, [this](const std::vector<TestPage>& chain, std::mt19937& rng) {
    const std::string request = absl::StrCat(rng() % 4);
    const LookupAnswer answer =
        Lookup(chain, Precision::kNone, Precision::kNone, {"looker", request, absl::Seconds(60)});
    for (size_t i = 0; i < answer.pages.size(); ++i) {
      const auto page = store_->GetLeased("looker", answer.lease, chain[i].record());
      if (page.ok() && *page != nullptr) Check(**page, chain[i]);
    }
    if (rng() % 3 == 0) store_->ReleaseSession("looker");
  });
  Start(12, [this](const std::vector<TestPage>& chain, std::mt19937& rng) {
    const TestPage& spec = chain[rng() % chain.size()];
    if (in_flight_ > 16) return;
    ++in_flight_;
    store_->LoadAsync(spec.record(), spec.scope(), [this, spec](absl::StatusOr<HostPagePtr> page) {
      if (page.ok()) Check(**page, spec);
      if (page.status().code() == absl::StatusCode::kDataLoss) ++wrong_;
      --in_flight_;
    });
  });
  Start(13, [this](const std::vector<TestPage>& chain, std::mt19937& rng) {
    TestPage spec = chain[rng() % chain.size()];
    const HostPagePtr page = Get(spec);
    if (page == nullptr || page->precision() != Precision::kRaw16) return;
    spec.precision = Precision::kQ8;
    auto staged = store_->Stage(spec.scope(), HeaderOf(spec));
    if (!staged.ok()) return;
    Fill(spec, *staged);
    store_->ReplaceEncoding(page, *std::move(staged)).IgnoreError();
  });
  Start(14, [this](const std::vector<TestPage>& chain, std::mt19937& rng) {
    const TestPage& spec = chain[rng() % chain.size()];
    PageFilter filter;
    // Mostly a page and what follows it; at times a whole tenant.
    if (rng() % 8 != 0) filter.record = spec.record();
    filter.scope = spec.scope();
    filter.keep_locked = rng() % 2 == 0;
    if (rng() % 3 != 0) filter.tier = rng() % 2 == 0 ? TierKind::kHost : TierKind::kSsd;
    store_->Evict(filter);
    clock_.Advance(absl::Milliseconds(200));
    store_->Stats();
    absl::SleepFor(absl::Milliseconds(1));
  });
  RunFor(absl::Seconds(1), [this] {
    const StoreCounters counters = store_->Stats().counters;
    return counters.loads_started >= 20 && counters.demoted_bytes > 0;
  });
  EXPECT_TRUE(Eventually([this] { return in_flight_ == 0; }));
  EXPECT_EQ(wrong_, 0);
  store_->ReleaseSession("looker");
  EXPECT_TRUE(Eventually([this] { return store_->Stats().load_queue_count == 0; }));
  ExpectExact();
  const StoreCounters counters = store_->Stats().counters;
  EXPECT_GT(counters.commits[0], 0);
  EXPECT_GT(counters.loads_started, 0);
  EXPECT_GT(counters.ssd_written_bytes, 0);
  for (const auto& by_kind : counters.integrity_failures) {
    for (const int64_t count : by_kind) EXPECT_EQ(count, 0);
  }
  store_->Evict({});
  ExpectExact();
  EXPECT_EQ(store_->Stats().page_count, 0);
  EXPECT_EQ(store_->Stats().host.used_bytes, 0);
  EXPECT_EQ(store_->Stats().host.reserved_bytes, 0);
  EXPECT_EQ(store_->Stats().ssd.used_bytes, 0);
}

TEST_F(StoreConcurrencyTest, ClosingUnderLoadHangsNobody) {
  Open();
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    Start(seed, [this](const std::vector<TestPage>& chain, std::mt19937& rng) {
      const TestPage& spec = chain[rng() % chain.size()];
      Push(chain[0]).IgnoreError();
      Push(spec).IgnoreError();
      ++in_flight_;
      store_->LoadAsync(spec.record(), spec.scope(),
                        [this](absl::StatusOr<HostPagePtr>) { --in_flight_; });
      Lookup(chain);
    });
  }
  absl::SleepFor(absl::Milliseconds(100));
  PAGODA_EXPECT_OK(store_->Shutdown(absl::Seconds(30)));
  RunFor(absl::Milliseconds(20), [] { return true; });
  EXPECT_EQ(in_flight_, 0);
  Open();
  ExpectExact();
}

}  // namespace
}  // namespace pagoda
