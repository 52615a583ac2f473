// Goal: pages have other forms in memory and on SSD just as the codec's owner says: under pressure
// the coldest become smaller before any is demoted, SSD gets the form meant for it and keeps what
// memory gave up, and a lookup that wants this gets it back. Method: q8 and q4 forms of one
// content, hooks that the test plays, every byte compared.
#include <fstream>

#include "storage/base/crc32c.h"
#include "storage/testing/raw_ssd.h"
#include "storage/testing/store_fixture.h"

namespace pagoda {
namespace {

class FormsTest : public StoreTest {
 protected:
  static TestPage At(TestPage page, Precision precision) {
    page.precision = precision;
    return page;
  }
  static TestPage Big(uint32_t token, Precision precision = Precision::kQ8) {
    TestPage page = TestRoot(token);
    page.segment_bytes = 400000;
    page.precision = precision;
    return page;
  }
  absl::Status Lower(const TestPage& page, SsdCopy on_ssd) {
    return store_->ReplaceEncoding(Get(page), Staged(At(page, Precision::kQ4)), on_ssd);
  }
  // Of the session "session"; waits for the answer.
  absl::StatusOr<HostPagePtr> LoadLeased(LeaseId lease, const TestPage& page) {
    absl::StatusOr<HostPagePtr> answer = absl::UnknownError("no answer");
    absl::Notification done;
    store_->LoadLeased("session", lease, page.record(), [&](absl::StatusOr<HostPagePtr> loaded) {
      answer = std::move(loaded);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }
  static std::optional<SsdForm> Q4Form(const HostPage& host, const TestPage& page) {
    if (host.precision() <= Precision::kQ4) return std::nullopt;
    const TestPage q4 = At(page, Precision::kQ4);
    SsdForm form;
    form.header = HeaderOf(q4);
    auto bytes = std::make_shared<std::vector<std::string>>();
    for (size_t i = 0; i < form.header.segments.size(); ++i) {
      bytes->push_back(SegmentBytes(q4, form.header, i));
      form.header.segments[i].crc32c = Crc32c(AsBytes(bytes->back()));
    }
    for (const std::string& segment : *bytes) form.segments.push_back(AsBytes(segment));
    form.owner = bytes;
    return form;
  }
  // Pages one after another, the coldest first, until memory is short and what that starts is seen.
  std::vector<TestPage> PushUntil(const std::function<bool()>& seen) {
    std::vector<TestPage> pages;
    while (!seen() && pages.size() < 200) {
      pages.push_back(Big(static_cast<uint32_t>(pages.size() + 1)));
      PAGODA_EXPECT_OK(Push(pages.back()));
      EXPECT_TRUE(used_share() < 0.85 || Eventually(seen));
    }
    return pages;
  }
  double used_share() {
    const TierStats host = store_->Stats().host;
    return static_cast<double>(host.used_bytes) / static_cast<double>(host.capacity_bytes);
  }
};

TEST_F(FormsTest, SsdGetsTheFormMeantForIt) {
  Open();
  const TestPage page = At(TestRoot(1), Precision::kQ8);
  PageForms forms;
  forms.on_ssd = [&](const HostPage& host) { return Q4Form(host, page); };
  store_->SetPageForms(forms);
  PAGODA_ASSERT_OK(Push(page));
  PersistAll({page});
  EXPECT_EQ(store_->Stats().dirty_page_count, 0);
  EXPECT_TRUE(IsExactly(*Get(page), page));
  EXPECT_EQ(Lookup({page}, Precision::kQ8).pages.size(), 1u);
  ExpectExact();
  DropFromHost();
  EXPECT_EQ(Lookup({page}, Precision::kQ8).pages.size(), 0u);
  EXPECT_EQ(Lookup({page}, Precision::kQ4).pages.size(), 1u);
  const auto loaded = Load(page);
  PAGODA_ASSERT_OK(loaded);
  EXPECT_TRUE(IsExactly(**loaded, At(page, Precision::kQ4)));
  ExpectExact();
  Open();  // from the index
  EXPECT_EQ(Lookup({page}, Precision::kQ4).pages.size(), 1u);
  EXPECT_TRUE(IsExactly(**Load(page), At(page, Precision::kQ4)));
}

TEST_F(FormsTest, TheSameFormIsNotWrittenTwice) {
  Open();
  const TestPage page = At(TestRoot(1), Precision::kQ8);
  PageForms forms;
  forms.on_ssd = [&](const HostPage& host) { return Q4Form(host, page); };
  store_->SetPageForms(forms);
  PAGODA_ASSERT_OK(Push(page));
  PersistAll({page});
  const int64_t written = store_->Stats().counters.ssd_written_bytes;
  PAGODA_ASSERT_OK(Lower(page, SsdCopy::kFollows));
  PAGODA_ASSERT_OK(store_->Flush());
  EXPECT_EQ(store_->Stats().counters.ssd_written_bytes, written);
  EXPECT_EQ(store_->Stats().dirty_page_count, 0);
  ExpectExact();
}

// Memory comes down, and what SSD would get of it is what it has.
TEST_F(FormsTest, APoorerFormOnSsdIsNotWrittenAgain) {
  Open();
  const TestPage page = TestRoot(1);
  PageForms forms;
  forms.on_ssd = [&](const HostPage& host) { return Q4Form(host, page); };
  forms.ssd_precision = [](const HostPage& host) {
    return std::min(host.precision(), Precision::kQ4);
  };
  store_->SetPageForms(forms);
  PAGODA_ASSERT_OK(Push(page));
  PersistAll({page});
  const int64_t written = store_->Stats().counters.ssd_written_bytes;
  const TestPage q8 = At(page, Precision::kQ8);
  PAGODA_ASSERT_OK(store_->ReplaceEncoding(Get(page), Staged(q8), SsdCopy::kFollows));
  PAGODA_ASSERT_OK(store_->Flush());
  EXPECT_EQ(store_->Stats().counters.ssd_written_bytes, written);
  EXPECT_EQ(store_->Stats().dirty_page_count, 0);
  // A form that is not due to be there is replaced.
  forms.ssd_precision = nullptr;
  forms.on_ssd = nullptr;
  store_->SetPageForms(forms);
  PAGODA_ASSERT_OK(Lower(q8, SsdCopy::kFollows));
  EXPECT_EQ(store_->Stats().dirty_page_count, 0);  // q4 it has
  ExpectExact();
}

TEST_F(FormsTest, WhatMemoryGaveUpComesBackForWhoWantsIt) {
  Open();
  const std::vector<TestPage> chain = TestChain(3, 1, At(TestRoot(0), Precision::kQ8));
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll(chain);
  PAGODA_ASSERT_OK(Lower(chain[1], SsdCopy::kStays));
  EXPECT_EQ(store_->Stats().dirty_page_count, 0);
  ExpectExact();

  // Who is content with q4 reads what is in memory.
  const LookupAnswer low = Lookup(chain, Precision::kQ4);
  ASSERT_EQ(low.pages.size(), 3u);
  EXPECT_EQ(low.pages[1].state, PageState::kReady);
  EXPECT_EQ(low.pages[1].precision, Precision::kQ4);

  const LookupAnswer high =
      Lookup(chain, Precision::kQ8, Precision::kNone, {"session", "request", absl::Minutes(1)});
  ASSERT_EQ(high.pages.size(), 3u);
  EXPECT_EQ(high.pages[1].state, PageState::kLoading);
  EXPECT_EQ(high.pages[1].tier, TierKind::kSsd);
  EXPECT_EQ(high.pages[1].precision, Precision::kQ8);
  EXPECT_EQ(*store_->GetLeased("session", high.lease, chain[1].record()), nullptr);
  absl::StatusOr<HostPagePtr> page = LoadLeased(high.lease, chain[1]);
  PAGODA_ASSERT_OK(page);
  EXPECT_TRUE(IsExactly(**page, chain[1]));
  EXPECT_EQ(*store_->GetLeased("session", high.lease, chain[1].record()), *page);
  EXPECT_EQ(Get(chain[1]), *page);
  *page = nullptr;
  store_->ReleaseSession("session");
  ExpectExact();

  // Without its copy on SSD there is nothing better: a miss for who wants more.
  PAGODA_ASSERT_OK(Lower(chain[1], SsdCopy::kFollows));
  PAGODA_ASSERT_OK(store_->Flush());
  EXPECT_EQ(Lookup(chain, Precision::kQ8).pages.size(), 1u);
  ExpectExact();
}

TEST_F(FormsTest, ABrokenCopyOnSsdLeavesTheLowerFormInMemory) {
  Open();
  const std::vector<TestPage> chain = TestChain(2, 1, At(TestRoot(0), Precision::kQ8));
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll(chain);
  PAGODA_ASSERT_OK(Lower(chain[0], SsdCopy::kStays));
  int damaged_files = 0;
  for (uint32_t file = 0; file < 4; ++file) {
    std::fstream extents(ExtentFilePath(options_.ssd.path, file),
                         std::ios::in | std::ios::out | std::ios::binary);
    if (!extents.good()) continue;
    ++damaged_files;
    for (int64_t at = 8; at < int64_t{1} << 20; at += 4096) {
      extents.seekp(at);
      extents.put('\x5a');
    }
  }
  ASSERT_GT(damaged_files, 0);
  const LookupAnswer found =
      Lookup(chain, Precision::kQ8, Precision::kNone, {"session", "request", absl::Minutes(1)});
  ASSERT_EQ(found.pages.size(), 2u);
  ASSERT_EQ(found.pages[0].state, PageState::kLoading);
  EXPECT_THAT(LoadLeased(found.lease, chain[0]), StatusIs(absl::StatusCode::kDataLoss));
  store_->ReleaseSession("session");
  // Who is content with q4 still has the whole chain.
  EXPECT_EQ(Lookup(chain, Precision::kQ4).pages.size(), 2u);
  EXPECT_TRUE(IsExactly(*Get(chain[0]), At(chain[0], Precision::kQ4)));
  EXPECT_EQ(Lookup(chain, Precision::kQ8).pages.size(), 0u);
  EXPECT_EQ(store_->Stats().dirty_page_count, 1);
  PAGODA_ASSERT_OK(store_->Flush());
  ExpectExact();
}

// ---- Under pressure -----------------------------------------------------------------------------

// A codec that halves pages, or only says so.
struct Shedder {
  absl::Mutex mutex;
  std::vector<PageKey> asked ABSL_GUARDED_BY(mutex);

  int64_t asked_count() {
    absl::MutexLock lock(&mutex);
    return static_cast<int64_t>(asked.size());
  }
  PageForms Forms(std::function<int64_t(const HostPage&)> gain) {
    PageForms forms;
    forms.shed_gain = std::move(gain);
    forms.shed = [this](const RecordKey& record, const ScopeId&) {
      absl::MutexLock lock(&mutex);
      asked.push_back(record.key);
      return true;
    };
    return forms;
  }
};
int64_t Half(const HostPage& page) { return page.bytes() / 2; }

TEST_F(FormsTest, UnderPressureTheColdestBecomeSmallerBeforeAnyGoes) {
  options_.demotion_period = absl::Hours(1);  // only when it is asked
  Shedder shedder;
  Open();
  store_->SetPageForms(shedder.Forms(Half));
  const std::vector<TestPage> pages = PushUntil([&] {
    const double freed_bytes = shedder.asked_count() * HeaderOf(Big(1)).stored_bytes() / 2;
    return freed_bytes > 0 && used_share() - freed_bytes / (16 << 20) < 0.75;
  });
  std::vector<PageKey> first;
  {
    absl::MutexLock lock(&shedder.mutex);
    first = shedder.asked;
  }
  ASSERT_LT(first.size(), pages.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i], pages[i].record().key) << i;
  // They keep the promise: nothing is demoted, and all pages are there.
  for (size_t i = 0; i < first.size(); ++i) {
    ASSERT_NE(store_->TakeShed(pages[i].record(), pages[i].scope()), nullptr) << i;
    PAGODA_ASSERT_OK(Lower(pages[i], SsdCopy::kStays));
  }
  EXPECT_LT(used_share(), 0.85);
  for (const TestPage& page : pages) EXPECT_NE(Get(page), nullptr);
  EXPECT_EQ(store_->Stats().counters.demoted_bytes, 0);
  ExpectExact();
}

TEST_F(FormsTest, PagesThatYieldNothingDoNotHideWarmerOnes) {
  Shedder shedder;
  Open();
  std::set<PageKey> cold;
  for (uint32_t i = 1; i <= 12; ++i) cold.insert(Big(i).record().key);
  store_->SetPageForms(shedder.Forms([cold](const HostPage& page) {
    return cold.contains(page.header().record.key) ? 0 : Half(page);
  }));
  const std::vector<TestPage> pages = PushUntil([&] { return shedder.asked_count() > 1; });
  absl::MutexLock lock(&shedder.mutex);
  EXPECT_EQ(shedder.asked[0], Big(13).record().key);
  EXPECT_EQ(shedder.asked[1], Big(14).record().key);
}

TEST_F(FormsTest, PromisesHoldOffDemotionForOnePatienceOnly) {
  Shedder shedder;
  Open();
  store_->SetPageForms(shedder.Forms(Half));  // honest, but nobody does it
  const std::vector<TestPage> pages = PushUntil([&] { return shedder.asked_count() > 0; });
  EXPECT_EQ(store_->Stats().counters.demoted_bytes, 0);
  clock_.Advance(absl::Milliseconds(1100));
  EXPECT_TRUE(Eventually([&] { return used_share() < 0.85; }));
  EXPECT_EQ(store_->Stats().page_count, static_cast<int64_t>(pages.size()));
  ExpectExact();
}

TEST_F(FormsTest, PromisesDoNotHoldOffWhatThePushesNeed) {
  Shedder shedder;
  Open();
  store_->SetPageForms(shedder.Forms(Half));
  for (uint32_t i = 1; i <= 60; ++i) {  // the clock stands still
    ASSERT_TRUE(Eventually([&] { return Push(Big(i)).ok(); })) << i;
  }
  EXPECT_EQ(store_->Stats().page_count, 60);
  ExpectExact();
}

TEST_F(FormsTest, WhenItsTurnComesAPageMayHaveToStay) {
  options_.demotion_period = absl::Hours(1);
  Shedder shedder;
  Open();
  store_->SetPageForms(shedder.Forms(Half));
  const std::vector<TestPage> pages = PushUntil([&] { return shedder.asked_count() > 2; });
  const auto take = [&](int i) { return store_->TakeShed(pages[i].record(), pages[i].scope()); };
  PAGODA_ASSERT_OK(store_->Pin(pages[0].record(), pages[0].scope()));
  EXPECT_EQ(take(0), nullptr);
  const HostPagePtr reader = Get(pages[1]);
  EXPECT_EQ(take(1), nullptr);
  EXPECT_NE(take(2), nullptr);
  store_->EndShed(pages[2].record(), pages[2].scope(), /*ask_again=*/true);
  EXPECT_EQ(take(2), nullptr);  // nobody asks it any more
}

TEST_F(FormsTest, TurnsThatComeTooLateAreDropped) {
  options_.demotion_period = absl::Hours(1);
  Shedder shedder;
  Open();
  store_->SetPageForms(shedder.Forms(Half));
  const std::vector<TestPage> pages = PushUntil([&] { return shedder.asked_count() > 0; });
  clock_.Advance(absl::Milliseconds(1100));
  EXPECT_EQ(store_->TakeShed(pages[0].record(), pages[0].scope()), nullptr);
}

TEST_F(FormsTest, NobodyBecomesSmallerWhenMemoryIsShortNoLonger) {
  options_.demotion_period = absl::Hours(1);
  Shedder shedder;
  Open();
  store_->SetPageForms(shedder.Forms(Half));
  const std::vector<TestPage> pages = PushUntil([&] { return shedder.asked_count() > 0; });
  for (size_t i = 6; i < pages.size(); ++i) {
    PAGODA_ASSERT_OK(store_->Remove(pages[i].record(), pages[i].scope()));
  }
  EXPECT_EQ(store_->TakeShed(pages[0].record(), pages[0].scope()), nullptr);
}

}  // namespace
}  // namespace pagoda
