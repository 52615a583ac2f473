// Goal: a page in device memory has the bytes of its page in host memory, layer by layer; what is
// read stays, what fails or does not fit is a status, and a chunk of host memory is never
// unregistered under a copy. Method: real pages of a host tier, the host as a device that ends the
// process on misuse, stepped by hand, and once with threads.
#include "storage/hbm_tier.h"

#include <gtest/gtest.h>

#include <thread>

#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/host_runtime.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

using Schedule = HostRuntimeOptions::Schedule;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr uint32_t kLarge =
    (256 << 10) - 2000;  // of a page's two slabs; a chunk holds 4 such pages
constexpr absl::Duration kLong = absl::Seconds(60);

class HbmTierTest : public ::testing::Test {
 protected:
  void Open(Schedule schedule = Schedule::kManual, int64_t hbm_bytes = 8 * kMiB) {
    host_ = *HostTier::Create({.capacity_bytes = 4 * kMiB});
    runtime_ = std::make_unique<HostRuntime>(HostRuntimeOptions{.schedule = schedule});
    HbmTierOptions options;
    options.pool.capacity_bytes = hbm_bytes;
    options.pool.chunk_bytes = 2 * kMiB;
    options.mover.own_thread = schedule == Schedule::kThread;
    tier_ = *HbmTier::Create(*runtime_, *host_, clock_, options);
  }
  HostPagePtr Host(const TestPage& page) {
    StagedPage staged = *StagedPage::Create(host_, HeaderOf(page));
    Fill(page, staged);
    return *StagedPage::Freeze(std::move(staged));
  }
  static TestPage Page(uint32_t token, uint32_t segment_bytes = 5000) {
    TestPage page = TestRoot(token);
    page.segment_bytes = segment_bytes;
    return page;
  }
  // Device memory is the host's here.
  static bool HasBytes(const DevicePage& page, const TestPage& of) {
    for (size_t i = 0; i < page.segment_count(); ++i) {
      const std::string bytes = SegmentBytes(of, page.header(), i);
      if (std::memcmp(page.segment(i).data(), bytes.data(), bytes.size()) != 0) return false;
    }
    return page.header().record == of.record();
  }
  void Finish() {
    for (int i = 0; i < 3; ++i) {
      runtime_->RunUntilIdle();
      tier_->Poll();
    }
    EXPECT_EQ(tier_->mover().stats().in_flight_count, 0);
  }

  FakeClock clock_;
  std::shared_ptr<HostTier> host_;
  std::unique_ptr<HostRuntime> runtime_;
  std::unique_ptr<HbmTier> tier_;
};

TEST_F(HbmTierTest, APageComesLayerByLayerAndOnce) {
  Open();
  const TestPage page = Page(1);
  HostPagePtr host = Host(page);
  EXPECT_EQ(tier_->Find(page.record()), nullptr);
  const auto promoted = tier_->Promote(host);
  PAGODA_ASSERT_OK(promoted);
  EXPECT_EQ(tier_->Find(page.record()), *promoted);
  EXPECT_EQ(*tier_->Promote(host), *promoted);
  host.reset();  // dropped from host memory: the copy holds it
  auto consumer = *runtime_->NewStream();
  PAGODA_ASSERT_OK((*promoted)->WaitLayer(*consumer, 0));
  PAGODA_ASSERT_OK((*promoted)->AwaitAll(kLong));
  EXPECT_TRUE(HasBytes(**promoted, page));
  EXPECT_EQ(tier_->stats().promoted_count, 0);  // not before it is known
  Finish();
  EXPECT_EQ(host_->usage().slab_count, 0);
  EXPECT_EQ(tier_->stats().promoted_count, 1);
  EXPECT_EQ(tier_->stats().promoted_bytes, (*promoted)->bytes());
  EXPECT_EQ(tier_->stats().page_bytes, (*promoted)->bytes());
  EXPECT_EQ(tier_->pool().usage().used_bytes, (*promoted)->bytes());
}

TEST_F(HbmTierTest, TheLeastRecentlyUsedGoesAndWhatIsReadStays) {
  Open(Schedule::kManual, 2 * kMiB);
  std::vector<DevicePagePtr> held;
  for (uint32_t token = 1; token <= 4; ++token) {
    PAGODA_ASSERT_OK(tier_->Promote(Host(Page(token, kLarge))));
    Finish();
  }
  held.push_back(tier_->Find(Page(1).record()));
  tier_->Find(Page(2).record());
  PAGODA_ASSERT_OK(tier_->Promote(Host(Page(5, kLarge))));  // page 3 goes
  Finish();
  EXPECT_EQ(tier_->Find(Page(3).record()), nullptr);
  EXPECT_NE(tier_->Find(Page(2).record()), nullptr);
  for (const uint32_t token : {2, 4, 5}) held.push_back(tier_->Find(Page(token).record()));
  EXPECT_THAT(tier_->Promote(Host(Page(6, kLarge))),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(HasBytes(*held[0], Page(1, kLarge)));
  tier_->DropAll();
  EXPECT_TRUE(HasBytes(*held[0], Page(1, kLarge)));
  EXPECT_THAT(tier_->Promote(Host(Page(6, kLarge))),
              StatusIs(absl::StatusCode::kResourceExhausted));
  held.clear();
  PAGODA_EXPECT_OK(tier_->Promote(Host(Page(6, kLarge))));
  Finish();
  EXPECT_EQ(tier_->stats().evicted_count, 1);
  EXPECT_EQ(tier_->stats().refused_count, 2);
}

TEST_F(HbmTierTest, OnlyPagesThatNobodyReadsMakeWay) {
  Open(Schedule::kManual, 2 * kMiB);
  const TimelineId reader = tier_->pool().AddTimeline();
  const auto read = [&](uint32_t token) {
    const DevicePagePtr page = tier_->Find(Page(token).record());
    for (size_t i = 0; i < page->segment_count(); ++i) page->segment(i).KeepUntil({reader, token});
  };
  for (uint32_t token = 1; token <= 4; ++token) {
    PAGODA_ASSERT_OK(tier_->Promote(Host(Page(token, kLarge))));
    Finish();
  }
  read(1);
  tier_->Drop(Page(1).record());  // waits for its reader, and holds up nobody
  PAGODA_ASSERT_OK(tier_->Promote(Host(Page(5, kLarge))));
  Finish();
  EXPECT_EQ(tier_->Find(Page(2).record()), nullptr);
  for (const uint32_t token : {3, 4, 5}) read(token);
  EXPECT_THAT(tier_->Promote(Host(Page(6, kLarge))),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(tier_->stats().page_count, 3);
  tier_->pool().Advance(reader, 1);
  PAGODA_EXPECT_OK(tier_->Promote(Host(Page(6, kLarge))));
  Finish();
  EXPECT_EQ(tier_->stats().evicted_count, 1);
}

// Chunks that somebody maps stay with their scope: another one's page drives nothing out of them,
// and of the others no more than one chunk's.
TEST_F(HbmTierTest, OnlyWhatHelpsMakesWay) {
  Open();
  DevicePool& pool = tier_->pool();
  const TimelineId stays = pool.AddTimeline();
  const TimelineId leaves = pool.AddTimeline();
  for (uint32_t token = 1; token <= 16; ++token) {
    const auto page = tier_->Promote(Host(Page(token, kLarge)));
    PAGODA_ASSERT_OK(page);
    const DeviceSlab& slab = (*page)->segment(0);
    pool.AddImporter(slab, slab.place().chunk == 2 ? leaves : stays, MemoryHandle::Kind::kMemfd);
    Finish();
  }
  TestPage other = Page(17, kLarge);
  other.tenant = "another";
  EXPECT_THAT(tier_->Promote(Host(other)), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(tier_->stats().page_count, 16);
  pool.EndTimeline(leaves);
  runtime_->FailNext(HostCall::kAllocate, absl::ResourceExhaustedError("no memory"));
  EXPECT_THAT(tier_->Promote(Host(other)), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(tier_->stats().page_count, 12);
  PAGODA_EXPECT_OK(tier_->Promote(Host(other)));
  Finish();
  EXPECT_EQ(tier_->stats().page_count, 13);
  EXPECT_EQ(tier_->stats().evicted_count, 4);
  PAGODA_EXPECT_OK(pool.CheckAccounting());
}

TEST_F(HbmTierTest, APageThatIsNotKeptIsItsHoldersAlone) {
  Open();
  TestPage page = Page(1);
  const DevicePagePtr kept = *tier_->Promote(Host(page));
  page.precision = Precision::kQ4;
  const DevicePagePtr own = *tier_->Promote(Host(page), /*keep=*/false);
  Finish();
  EXPECT_TRUE(HasBytes(*own, page));
  EXPECT_EQ(tier_->Find(page.record()), kept);
  tier_->Drop(*own);
  EXPECT_EQ(tier_->Find(page.record()), kept);
  tier_->Drop(*kept);
  EXPECT_EQ(tier_->Find(page.record()), nullptr);
}

TEST_F(HbmTierTest, AnotherEncodingTakesItsPlace) {
  Open();
  TestPage page = Page(1);
  const DevicePagePtr raw = *tier_->Promote(Host(page));
  page.precision = Precision::kQ4;
  const DevicePagePtr encoded = *tier_->Promote(Host(page));
  Finish();
  EXPECT_NE(raw, encoded);
  EXPECT_EQ(tier_->Find(page.record()), encoded);
  EXPECT_TRUE(HasBytes(*encoded, page));
  EXPECT_TRUE(HasBytes(*raw, Page(1)));
  EXPECT_EQ(tier_->stats().page_count, 1);
}

// A chunk changes its scope while pages of it were copied from: it is unregistered after the
// copies.
TEST_F(HbmTierTest, ChunksOfTheHostComeAndGo) {
  Open();
  for (int round = 0; round < 6; ++round) {
    std::vector<HostPagePtr> pages;
    for (uint32_t token = 1; token <= 3; ++token) {
      TestPage page = Page(token);
      page.tenant = "tenant" + std::to_string(round);
      auto promoted = tier_->Promote(Host(page));
      PAGODA_ASSERT_OK(promoted);
      PAGODA_ASSERT_OK((*promoted)->AwaitAll(kLong));
      EXPECT_TRUE(HasBytes(**promoted, page));
    }
    Finish();
  }
  EXPECT_GT(tier_->pinned().pinned_bytes, 0);
  EXPECT_LE(tier_->pinned().pinned_bytes, 4 * kMiB + 64 * 1024);
}

TEST_F(HbmTierTest, FaultsLeaveThePageWhereItIs) {
  Open();
  runtime_->FailNext(HostCall::kRegister, absl::ResourceExhaustedError("memlock"));
  PAGODA_EXPECT_OK(tier_->Promote(Host(Page(1))));  // from plain memory
  EXPECT_EQ(tier_->pinned().refusal.message(), "memlock");
  Finish();
  runtime_->FailNext(HostCall::kCopy, absl::InternalError("injected"));
  EXPECT_THAT(tier_->Promote(Host(Page(2))), StatusIs(absl::StatusCode::kInternal, "injected"));
  tier_->Poll();
  Finish();
  EXPECT_EQ(tier_->Find(Page(2).record()), nullptr);
  // A late copy is out of the tier, and its memory is held until it is done.
  const auto late = tier_->Promote(Host(Page(4)));
  PAGODA_ASSERT_OK(late);
  clock_.Advance(absl::Seconds(11));
  tier_->Poll();
  EXPECT_EQ(tier_->Find(Page(4).record()), nullptr);
  EXPECT_THAT((*late)->AwaitAll(kLong), StatusIs(absl::StatusCode::kDeadlineExceeded));
  Finish();
  const auto lost = tier_->Promote(Host(Page(5)));
  PAGODA_ASSERT_OK(lost);
  runtime_->Lose("test");
  tier_->Poll();
  EXPECT_EQ(tier_->Find(Page(5).record()), nullptr);
  EXPECT_THAT((*lost)->AwaitAll(kLong), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(tier_->Promote(Host(Page(6))), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(HbmTierTest, ManyThreads) {
  Open(Schedule::kThread);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([this, t] {
      for (uint32_t i = 0; i < 60; ++i) {
        const TestPage page = Page(1 + (i * 7 + t) % 12, 64 << 10);
        const HostPagePtr host = Host(page);
        const auto promoted = tier_->Promote(host);
        if (absl::IsResourceExhausted(promoted.status())) continue;  // all are in use
        PAGODA_ASSERT_OK(promoted);
        PAGODA_ASSERT_OK((*promoted)->AwaitAll(kLong));
        ASSERT_TRUE(HasBytes(**promoted, page));
        if (i % 10 == 0) tier_->Drop(page.record());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  tier_.reset();
  EXPECT_EQ(runtime_->used_bytes(), 0);
  EXPECT_EQ(host_->usage().slab_count, 0);
}

TEST_F(HbmTierTest, OptionsAreChecked) {
  Open();
  HbmTierOptions options;
  EXPECT_THAT(HbmTier::Create(*runtime_, *host_, clock_, options),
              StatusIs(absl::StatusCode::kInvalidArgument, "capacity_bytes"));
  options.pool.capacity_bytes = options.pool.chunk_bytes;
  options.pinned_bytes_max = -1;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, "pinned_bytes_max"));
}

}  // namespace
}  // namespace pagoda
