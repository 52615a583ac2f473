// Goal: floors, hot pages, admission and marks decide as they are set, also when they are changed
// while the store is full. Method: pages of 400 KB into 16 MiB, two tenants, with and without SSD.
#include <gtest/gtest.h>

#include "storage/testing/store_fixture.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class TieredStorePoliciesTest : public StoreTest {
 protected:
  static TestPage Big(uint32_t token, const std::string& tenant = "acme") {
    TestPage page = TestRoot(token);
    page.tenant = tenant;
    page.segment_bytes = 200000;
    return page;
  }
  void PushMany(uint32_t first, uint32_t count, const std::string& tenant = "acme") {
    for (uint32_t i = first; i < first + count; ++i) {
      PAGODA_ASSERT_OK(Push(Big(i, tenant))) << i;
    }
  }
  int HeldOf(uint32_t first, uint32_t count, const std::string& tenant = "acme") {
    int held = 0;
    for (uint32_t i = first; i < first + count; ++i) held += Get(Big(i, tenant)) != nullptr ? 1 : 0;
    return held;
  }
  int64_t Evictions(EvictionReason reason) {
    const auto& counts = store_->Stats().counters.evictions[static_cast<int>(TierKind::kHost)];
    return counts[static_cast<int>(reason)][0] + counts[static_cast<int>(reason)][1];
  }
};

TEST_F(TieredStorePoliciesTest, WrongPoliciesAreRefusedAndChangeNothing) {
  OpenWithoutSsd();
  const auto set = [&](auto change) {
    StorePolicies policies = store_->policies();
    change(policies);
    return store_->SetPolicies(policies);
  };
  EXPECT_THAT(set([](auto& p) { p.host.eviction = "random"; }),
              StatusIs(kInvalid, "host: unknown eviction policy"));
  EXPECT_THAT(set([](auto& p) { p.ssd.marks.stop = 0.9; }), StatusIs(kInvalid, "ssd: watermarks"));
  EXPECT_THAT(set([](auto& p) { p.hot_pin.uses_min = -1; }), StatusIs(kInvalid, "uses_min"));
  EXPECT_THAT(set([](auto& p) { p.host.floors[ScopeId{}] = 13 << 20; }),
              StatusIs(kInvalid, "host: the floors"));
  EXPECT_EQ(store_->policies().host.eviction, "lru");
  EXPECT_TRUE(store_->policies().host.floors.empty());
  PAGODA_EXPECT_OK(set([](auto& p) { p.host.floors[ScopeId{}] = 12 << 20; }));
  EXPECT_EQ(store_->policies().host.floors.size(), 1u);
}

TEST_F(TieredStorePoliciesTest, AScopeKeepsItsFloorAgainstOthersNotAgainstItself) {
  options_.policies.host.floors[Big(1).scope()] = 4 << 20;
  OpenWithoutSsd();
  PushMany(1, 10);  // 4 MB, below the floor
  PushMany(100, 100, "evil");
  EXPECT_EQ(HeldOf(1, 10), 10);
  PushMany(200, 100);  // its own pressure
  EXPECT_EQ(HeldOf(1, 10), 0);
  PAGODA_EXPECT_OK(store_->CheckAccounting());
}

TEST_F(TieredStorePoliciesTest, WithoutFloorTheOldestGoWhoeverTheyAre) {
  OpenWithoutSsd();
  PushMany(1, 10);
  PushMany(100, 100, "evil");
  EXPECT_EQ(HeldOf(1, 10), 0);
}

TEST_F(TieredStorePoliciesTest, HotPagesOutliveNewerOnesUntilTheyCool) {
  options_.policies.hot_pin = {.uses_min = 3, .share = 0.25};
  OpenWithoutSsd();
  PushMany(1, 6);
  for (int use = 0; use < 3; ++use) {
    for (uint32_t i = 1; i <= 5; ++i) Lookup({Big(i)});
  }
  PushMany(100, 100);
  EXPECT_EQ(HeldOf(1, 5), 5);
  EXPECT_EQ(HeldOf(6, 1), 0);
  clock_.Advance(absl::Minutes(5));
  PushMany(300, 100);
  EXPECT_EQ(HeldOf(1, 5), 0);
}

TEST_F(TieredStorePoliciesTest, SecondTouchWritesWhatWasUsedAndWhatOthersFollow) {
  options_.policies.ssd_admission = policy::SsdAdmissionKind::kSecondTouch;
  Open();
  // A chain of which only the leaf is used: its parents are written with it.
  std::vector<TestPage> chain = {Big(1)};
  chain.push_back(chain[0].Child(2));
  chain.push_back(chain[1].Child(3));
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  LookupQuery query;
  query.scope = chain[2].scope();
  const std::vector<RecordKey> leaf = {chain[2].record()};
  query.keys = leaf;
  PAGODA_ASSERT_OK(store_->LookupPrefix(query));
  PAGODA_EXPECT_OK(store_->PersistAsync(Big(1).record(), Big(1).scope()));  // left to the admission
  for (uint32_t i = 100; i < 200; ++i) {
    ASSERT_TRUE(Eventually([&] { return Push(Big(i)).ok(); })) << i;
  }
  PAGODA_EXPECT_OK(store_->Flush());
  EXPECT_GT(Evictions(EvictionReason::kNotAdmitted), 0);
  int64_t on_ssd = 0;
  store_->ForEachPage([&](const PageInfo& page) { on_ssd += page.on_ssd ? 1 : 0; });
  EXPECT_EQ(on_ssd, 3);
  EXPECT_EQ(Lookup(chain).pages.size(), 3u);
  ExpectExact();
}

TEST_F(TieredStorePoliciesTest, ARequestThatAsksAgainUsesItsPagesOnce) {
  Open();
  PAGODA_ASSERT_OK(Push(Big(1)));
  const auto ask = [&](const char* request) {
    Lookup({Big(1)}, Precision::kNone, Precision::kNone, {"session", request, absl::Seconds(60)});
  };
  const auto uses = [&] {
    int32_t found = -1;
    store_->ForEachPage([&](const PageInfo& page) { found = page.uses; });
    return found;
  };
  EXPECT_EQ(uses(), 0);
  for (int i = 0; i < 5; ++i) ask("one");
  EXPECT_EQ(uses(), 1);
  ask("two");
  EXPECT_EQ(uses(), 2);
  store_->ReleaseSession("session");
  ask("one");
  EXPECT_EQ(uses(), 3);
}

TEST_F(TieredStorePoliciesTest, GhostWritesWhatComesBack) {
  options_.policies.ssd_admission = policy::SsdAdmissionKind::kS3FifoGhost;
  Open();
  const auto push_all = [&] {
    for (uint32_t i = 1; i <= 60; ++i) {
      ASSERT_TRUE(Eventually([&] { return Push(Big(i)).ok(); })) << i;
    }
  };
  push_all();
  EXPECT_EQ(store_->Stats().ssd.page_count, 0);
  ASSERT_TRUE(Eventually([&] { return Evictions(EvictionReason::kNotAdmitted) > 0; }));
  push_all();
  ASSERT_TRUE(Eventually([&] { return store_->Stats().ssd.page_count > 0; }));
  ExpectExact();
}

TEST_F(TieredStorePoliciesTest, MarksChangeAtRunTime) {
  OpenWithoutSsd();
  PushMany(1, 30);
  EXPECT_EQ(HeldOf(1, 30), 30);
  StorePolicies policies = store_->policies();
  policies.host.marks = {.start = 0.5, .stop = 0.25, .hard = 0.9};
  PAGODA_ASSERT_OK(store_->SetPolicies(policies));
  EXPECT_TRUE(Eventually([&] { return store_->Stats().host.used_bytes <= 4 << 20; }));
  EXPECT_EQ(Get(Big(1)), nullptr);
  EXPECT_NE(Get(Big(30)), nullptr);
}

TEST_F(TieredStorePoliciesTest, MassesOfUnknownPagesAreIgnored) {
  OpenWithoutSsd();
  PushMany(1, 1);
  const std::vector<RecordKey> keys = {Big(1).record(), Big(2).record()};
  store_->ReportAttention(Big(1).scope(), keys, {0.5, 0.5});
  store_->ReportAttention(Big(1, "evil").scope(), keys, {0.5});
  EXPECT_NE(Get(Big(1)), nullptr);
}

}  // namespace
}  // namespace pagoda
