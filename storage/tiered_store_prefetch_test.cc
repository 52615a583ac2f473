// Goal: what a client announces is in memory before it is asked for, and nothing that is worth more
// leaves for it. Method: real pages on a real SSD folder; the clock moves only when the test says
// so.
#include <gtest/gtest.h>

#include <atomic>

#include "storage/testing/store_fixture.h"

namespace pagoda {
namespace {

using prefetch::DropReason;
using prefetch::Source;
using prefetch::SourceCounters;

class TieredStorePrefetchTest : public StoreTest {
 protected:
  SourceCounters CountersOf(Source source) {
    return store_->Stats().prefetch.by_source[static_cast<int>(source)];
  }
  int64_t Dropped(Source source, DropReason reason) {
    return CountersOf(source).dropped[static_cast<int>(reason)];
  }
  void PushToSsd(const std::vector<TestPage>& pages) {
    for (const TestPage& page : pages) PAGODA_ASSERT_OK(Push(page));
    PersistAll(pages);
    DropFromHost();
  }
  int64_t Hint(const std::vector<TestPage>& chain, absl::Duration deadline = absl::Seconds(10),
               const std::string& session = "", std::vector<uint32_t> first_layers = {}) {
    std::vector<RecordKey> keys;
    for (const TestPage& page : chain) keys.push_back(page.record());
    PrefetchQuery query;
    query.scope = chain[0].scope();
    query.keys = keys;
    query.deadline = deadline;
    query.first_layers = first_layers;
    query.session_id = session;
    return store_->Prefetch(query);
  }
  TestPage Big(uint32_t token) {
    TestPage page = TestRoot(token);
    page.segment_bytes = 500000;  // a megabyte: 16 fill the tier
    return page;
  }
};

TEST_F(TieredStorePrefetchTest, AHintedChainIsThereBeforeItIsAsked) {
  Open();
  std::atomic<int> heard = 0;
  store_->SetPrefetchListener([&](const RecordKey&, const ScopeId&) { ++heard; });
  const std::vector<TestPage> chain = TestChain(4);
  PushToSsd(chain);
  ASSERT_EQ(Get(chain[0]), nullptr);
  std::vector<TestPage> asked = chain;
  asked.push_back(chain.back().Child(99));  // not stored: ends the hint
  EXPECT_EQ(Hint(asked), 4);
  ASSERT_TRUE(Eventually([&] { return CountersOf(Source::kHint).loaded == 4; }));
  for (const TestPage& page : chain) {
    const HostPagePtr resident = Get(page);
    ASSERT_NE(resident, nullptr);
    EXPECT_TRUE(IsExactly(*resident, page));
  }
  const LookupAnswer answer = Lookup(chain);
  ASSERT_EQ(answer.pages.size(), 4u);
  for (const PlacedPage& page : answer.pages) EXPECT_EQ(page.state, PageState::kReady);
  const SourceCounters hint = CountersOf(Source::kHint);
  EXPECT_EQ(hint.used, 4);  // used, in time
  EXPECT_EQ(hint.late, 0);
  EXPECT_EQ(hint.victims, 0);
  EXPECT_EQ(store_->Stats().prefetch.demanded, 0);
  EXPECT_TRUE(Eventually([&] { return heard == 4; }));
  EXPECT_EQ(Hint(chain), 4);  // resident: nothing to do, accepted all the same
  EXPECT_EQ(CountersOf(Source::kHint).asked, 4);
  ExpectExact();
}

TEST_F(TieredStorePrefetchTest, WithoutAHintTheRequestWaitsAndIsCounted) {
  Open();
  const std::vector<TestPage> chain = TestChain(3);
  PushToSsd(chain);
  EXPECT_EQ(Lookup(chain).pages[0].state, PageState::kLoading);
  EXPECT_EQ(store_->Stats().prefetch.demanded, 3);
}

TEST_F(TieredStorePrefetchTest, NothingHotterIsDisplacedAndTheHintEndsAtItsDeadline) {
  Open();
  const TestPage cold = Big(100);
  PushToSsd({cold});
  std::vector<TestPage> hot;
  for (uint32_t i = 1; i <= 13; ++i) hot.push_back(Big(i));  // above the mark for free room
  for (const TestPage& page : hot) PAGODA_ASSERT_OK(Push(page));
  PersistAll(hot);  // they could be dropped for nothing
  for (int i = 0; i < 3; ++i) {
    for (const TestPage& page : hot) Lookup({page});
  }
  EXPECT_EQ(Hint({cold}), 1);
  // Decisions are made at least every demotion_period; a decision on another page proves one.
  EXPECT_EQ(Hint({hot[0]}), 1);
  absl::SleepFor(10 * options_.demotion_period);
  EXPECT_EQ(Get(cold), nullptr);
  clock_.Advance(absl::Seconds(11));
  ASSERT_TRUE(Eventually([&] { return Dropped(Source::kHint, DropReason::kDeadline) == 1; }));
  for (const TestPage& page : hot) EXPECT_NE(Get(page), nullptr);
  EXPECT_EQ(CountersOf(Source::kHint).victims, 0);
  // Minutes later nobody has used them: now the announced page is worth more.
  clock_.Advance(absl::Minutes(10));
  EXPECT_EQ(Hint({cold}), 1);
  ASSERT_TRUE(Eventually([&] { return Get(cold) != nullptr; }));
  EXPECT_GE(CountersOf(Source::kHint).victims, 1);
  int resident = 0;
  for (const TestPage& page : hot) resident += Get(page) != nullptr ? 1 : 0;
  EXPECT_GE(resident, 11);
  ExpectExact();
}

TEST_F(TieredStorePrefetchTest, LeasedPagesStay) {
  Open();
  const TestPage cold = Big(100);
  PushToSsd({cold});
  std::vector<TestPage> held;
  for (uint32_t i = 1; i <= 13; ++i) held.push_back(Big(i));
  for (const TestPage& page : held) PAGODA_ASSERT_OK(Push(page));
  PersistAll(held);
  for (const TestPage& page : held) {
    Lookup({page}, Precision::kNone, Precision::kNone,
           {"session", page.record().key.hex(), absl::Minutes(30)});
  }
  clock_.Advance(absl::Minutes(9));  // cold by now
  EXPECT_EQ(Hint({cold}), 1);
  absl::SleepFor(10 * options_.demotion_period);
  EXPECT_EQ(Get(cold), nullptr);
  for (const TestPage& page : held) EXPECT_NE(Get(page), nullptr);
  store_->ReleaseSession("session");
  ASSERT_TRUE(Eventually([&] { return Get(cold) != nullptr; }));
}

TEST_F(TieredStorePrefetchTest, TheEndOfASessionTakesItsHintsBack) {
  options_.prefetch.bytes_per_second = 1;  // one page, and then nothing for hours
  Open();
  const std::vector<TestPage> chain = TestChain(3);
  PushToSsd(chain);
  EXPECT_EQ(Hint(chain, absl::Hours(9), "session"), 3);
  ASSERT_TRUE(Eventually([&] { return CountersOf(Source::kHint).loaded == 1; }));
  EXPECT_EQ(store_->Stats().prefetch.queued, 2);
  store_->ReleaseSession("another");
  EXPECT_EQ(store_->Stats().prefetch.queued, 2);
  store_->ReleaseSession("session");
  EXPECT_EQ(Dropped(Source::kHint, DropReason::kCancelled), 2);
}

TEST_F(TieredStorePrefetchTest, ASequenceIsReadInTheOrderOfItsLayers) {
  options_.loader_threads = 1;
  options_.prefetch.loads_max = 1;
  Open();
  std::vector<RecordKey> order;  // guarded by the order of one loader thread
  store_->SetPrefetchListener([&](const RecordKey& key, const ScopeId&) { order.push_back(key); });
  const std::vector<TestPage> chain = TestChain(4);
  PushToSsd(chain);
  EXPECT_EQ(Hint(chain, absl::Seconds(10), "session", {30, 10, 30, 20}), 4);
  ASSERT_TRUE(Eventually([&] { return CountersOf(Source::kSequence).loaded == 4; }));
  store_ = nullptr;  // joins the thread
  const std::vector<RecordKey> expected = {chain[1].record(), chain[3].record(), chain[0].record(),
                                           chain[2].record()};
  EXPECT_EQ(order, expected);
}

TEST_F(TieredStorePrefetchTest, ARemovedPageDoesNotComeBack) {
  Open();
  const std::vector<TestPage> chain = TestChain(2);
  PushToSsd(chain);
  EXPECT_EQ(Hint({chain[1]}), 1);
  PAGODA_EXPECT_OK(store_->Remove(chain[0].record(), chain[0].scope()));
  ASSERT_TRUE(Eventually([&] {
    const prefetch::Counters counters = store_->Stats().prefetch;
    return counters.queued == 0 && counters.loading == 0;
  }));
  EXPECT_TRUE(Lookup(chain).pages.empty());
  ExpectExact();
}

}  // namespace
}  // namespace pagoda
