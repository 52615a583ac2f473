// Goal: the right pages come up in the right order, within bandwidth and room, and every one of
// them is accounted for. Method: each source by hand in a small world; random runs in which the
// counters must add up and nothing forbidden is read.
#include "storage/prefetch/prefetch_scheduler.h"

#include <map>
#include <random>
#include <set>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::prefetch {
namespace {

constexpr int64_t kPageBytes = 100;

// Pages of one size in a memory of `room` pages; those in `locked` do not make way.
class FakeWorld : public World {
 public:
  Where WhereIs(PageId page) const override {
    const auto it = pages.find(page);
    return it == pages.end() ? Where::kGone : it->second;
  }
  int64_t BytesOf(PageId) const override { return kPageBytes; }
  PageId ParentOf(PageId page) const override {
    const auto it = parents.find(page);
    return it == parents.end() ? kNoPage : it->second;
  }
  std::optional<int64_t> MakeWay(int64_t, absl::FunctionRef<bool(PageId)> is_colder) override {
    if (taken() < room) return 0;
    for (auto& [page, where] : pages) {
      if (where != Where::kHost || locked.contains(page) || !is_colder(page)) continue;
      where = Where::kSsd;
      victims.push_back(page);
      return 1;
    }
    return std::nullopt;
  }
  int taken() const {
    int count = 0;
    for (const auto& [page, where] : pages) {
      if (where == Where::kHost || where == Where::kLoading) ++count;
    }
    return count;
  }

  std::map<PageId, Where> pages;
  std::map<PageId, PageId> parents;
  std::set<PageId> locked;
  std::vector<PageId> victims;
  int room = 1000;
};

class SchedulerTest : public ::testing::Test {
 protected:
  std::vector<PageId> Poll(Scheduler& scheduler) {
    std::vector<PageId> pages;
    for (const Action& action : scheduler.Poll(now_, world_)) {
      EXPECT_EQ(world_.WhereIs(action.page), Where::kSsd);
      world_.pages[action.page] = Where::kLoading;
      pages.push_back(action.page);
    }
    return pages;
  }
  void Arrive(Scheduler& scheduler, PageId page, bool ok = true) {
    world_.pages[page] = ok ? Where::kHost : Where::kSsd;
    scheduler.OnLoaded(page, ok);
  }
  void Use(Scheduler& scheduler, const std::vector<PageId>& pages, uint64_t stream = 0) {
    std::vector<UsedPage> used;
    for (const PageId page : pages) used.push_back({page, world_.WhereIs(page) == Where::kSsd});
    scheduler.OnLookup(used, stream, 1, now_);
  }
  bool Hint(Scheduler& scheduler, PageId page, int seconds, uint64_t owner = 0) {
    const absl::Duration deadline = now_ + absl::Seconds(seconds);
    return scheduler.Ask({page, Source::kHint, deadline, deadline, owner}, now_);
  }
  void OnSsd(PageId first, PageId last) {
    for (PageId page = first; page <= last; ++page) world_.pages[page] = Where::kSsd;
  }

  FakeWorld world_;
  absl::Duration now_ = absl::Seconds(100);
};

TEST_F(SchedulerTest, HintsEarliestDeadlineFirstAndTheirOutcome) {
  Scheduler scheduler({});
  OnSsd(1, 4);
  EXPECT_TRUE(Hint(scheduler, 1, 9));
  EXPECT_TRUE(Hint(scheduler, 2, 3));
  EXPECT_TRUE(Hint(scheduler, 3, 6));
  EXPECT_FALSE(Hint(scheduler, 4, 0));  // too late already
  EXPECT_EQ(Poll(scheduler), (std::vector<PageId>{2, 3, 1}));
  Arrive(scheduler, 2);
  Arrive(scheduler, 3);
  Use(scheduler, {1, 2});  // 1 is still loading
  Arrive(scheduler, 1);
  scheduler.OnLeft(3, true, now_);  // unused
  Use(scheduler, {2});              // counted once
  Use(scheduler, {4});              // nobody had asked for it in time
  const Counters counters = scheduler.counters();
  const SourceCounters& hint = counters.by_source[static_cast<int>(Source::kHint)];
  EXPECT_EQ(hint.asked, 4);
  EXPECT_EQ(hint.loaded, 3);
  EXPECT_EQ(hint.used, 1);
  EXPECT_EQ(hint.late, 1);
  EXPECT_EQ(hint.unused, 1);
  EXPECT_EQ(hint.dropped[static_cast<int>(DropReason::kDeadline)], 1);
  EXPECT_EQ(counters.demanded, 1);
}

TEST_F(SchedulerTest, WhatIsResidentLoadingGoneExpiredOrCancelledIsNotRead) {
  Options options;
  options.bytes_per_second = 1;  // the first page takes all for a while
  Scheduler scheduler(options);
  OnSsd(1, 6);
  world_.pages[2] = Where::kHost;
  world_.pages[3] = Where::kLoading;
  world_.pages.erase(4);
  for (PageId page = 1; page <= 4; ++page) Hint(scheduler, page, 10000);
  Hint(scheduler, 5, 10000, /*owner=*/70);
  Hint(scheduler, 6, 20000);
  EXPECT_EQ(Poll(scheduler), (std::vector<PageId>{1}));
  Arrive(scheduler, 1);
  scheduler.Cancel(70);
  now_ += absl::Seconds(200);
  EXPECT_EQ(Poll(scheduler), (std::vector<PageId>{6}));
  Arrive(scheduler, 6, /*ok=*/false);
  const Counters counters = scheduler.counters();
  const SourceCounters& hint = counters.by_source[static_cast<int>(Source::kHint)];
  EXPECT_EQ(hint.dropped[static_cast<int>(DropReason::kResident)], 2);
  EXPECT_EQ(hint.dropped[static_cast<int>(DropReason::kGone)], 1);
  EXPECT_EQ(hint.dropped[static_cast<int>(DropReason::kCancelled)], 1);
  EXPECT_EQ(hint.dropped[static_cast<int>(DropReason::kFailed)], 1);
  Hint(scheduler, 5, 5);
  now_ += absl::Seconds(200);
  EXPECT_TRUE(Poll(scheduler).empty());
  EXPECT_EQ(scheduler.counters()
                .by_source[static_cast<int>(Source::kHint)]
                .dropped[static_cast<int>(DropReason::kDeadline)],
            1);
}

TEST_F(SchedulerTest, FewLoadsAtATime) {
  Options options;
  options.loads_max = 2;
  Scheduler scheduler(options);
  OnSsd(1, 5);
  for (PageId page = 1; page <= 5; ++page) Hint(scheduler, page, 10);
  EXPECT_EQ(Poll(scheduler).size(), 2u);
  EXPECT_TRUE(Poll(scheduler).empty());
  Arrive(scheduler, 1);
  EXPECT_EQ(Poll(scheduler), (std::vector<PageId>{3}));
}

TEST_F(SchedulerTest, NothingHotterOrLockedMakesWay) {
  Scheduler scheduler({});
  OnSsd(1, 6);
  world_.room = 2;
  world_.pages[1] = Where::kHost;
  world_.pages[2] = Where::kHost;
  for (int i = 0; i < 3; ++i) Use(scheduler, {1});  // hotter than a page that is asked for once
  world_.locked.insert(2);
  Hint(scheduler, 5, 10);
  EXPECT_TRUE(Poll(scheduler).empty());
  EXPECT_EQ(scheduler.counters().queued, 1);  // it waits for room until its deadline
  world_.locked.clear();
  EXPECT_EQ(Poll(scheduler), (std::vector<PageId>{5}));
  EXPECT_EQ(world_.victims, (std::vector<PageId>{2}));
  EXPECT_EQ(scheduler.counters().by_source[static_cast<int>(Source::kHint)].victims, 1);
  // Hotter than what is there: the same page moves aside.
  for (int i = 0; i < 9; ++i) Use(scheduler, {6});
  Hint(scheduler, 6, 10);
  EXPECT_EQ(Poll(scheduler), (std::vector<PageId>{6}));
  EXPECT_EQ(world_.victims, (std::vector<PageId>{2, 1}));
}

TEST_F(SchedulerTest, TheNextPageOfAScanIsThereBeforeItIsAsked) {
  Options options;
  options.hotness = false;
  Scheduler scheduler(options);
  constexpr PageId kPages = 20;
  int asked = 0;
  for (int round = 0; round < 6; ++round) {
    OnSsd(1, kPages);  // everything was evicted meanwhile
    for (PageId page = 1; page <= kPages; ++page) {
      if (round >= 3) ++asked;
      Use(scheduler, {page}, /*stream=*/9);
      for (const PageId come : Poll(scheduler)) Arrive(scheduler, come);
      if (world_.pages[page] == Where::kSsd) world_.pages[page] = Where::kHost;
      now_ += absl::Milliseconds(100);
    }
    for (PageId page = 1; page <= kPages; ++page) scheduler.OnLeft(page, true, now_);
  }
  const Counters counters = scheduler.counters();
  const SourceCounters& next = counters.by_source[static_cast<int>(Source::kNextPage)];
  EXPECT_GE(next.used, asked * 9 / 10);  // coverage after warm-up
  EXPECT_GE(next.used * 10, next.loaded * 8);
  EXPECT_LE(counters.demanded, 3 * kPages + 6);
}

TEST_F(SchedulerTest, AHotPageComesBackAfterItWasDemoted) {
  Scheduler scheduler({});
  world_.pages[1] = world_.pages[2] = Where::kHost;
  for (int i = 0; i < 5; ++i) Use(scheduler, {1});
  Use(scheduler, {2});
  world_.pages[1] = world_.pages[2] = Where::kSsd;
  scheduler.OnLeft(1, true, now_);
  scheduler.OnLeft(2, true, now_);
  EXPECT_EQ(Poll(scheduler), (std::vector<PageId>{1}));
}

TEST_F(SchedulerTest, AConversationIsBackBeforeItsNextTurn) {
  Options options;
  options.hotness = options.next_page = false;
  Scheduler scheduler(options);
  for (PageId first = 1000; first < 1020; first += 2) {
    Use(scheduler, {first});
    now_ += absl::Seconds(100);
    Use(scheduler, {first, first + 1});
  }
  now_ += absl::Hours(1);
  for (PageId page = 1; page <= 3; ++page) world_.parents[page] = page - 1;
  world_.pages[1] = Where::kHost;
  OnSsd(2, 3);
  Use(scheduler, {1, 2});
  scheduler.OnCommit(2, 3, now_);
  now_ += absl::Seconds(70);
  EXPECT_TRUE(Poll(scheduler).empty());
  now_ += absl::Seconds(29);
  EXPECT_EQ(Poll(scheduler), (std::vector<PageId>{2, 3}));
}

TEST_F(SchedulerTest, EverySourceCanBeSwitchedOff) {
  Options options;
  options.sequence = options.hint = options.predicted_return = false;
  options.next_page = options.hotness = false;
  Scheduler scheduler(options);
  OnSsd(1, 9);
  EXPECT_FALSE(Hint(scheduler, 1, 9));
  for (int i = 0; i < 20; ++i) {
    Use(scheduler, {1, 2, 3}, 9);
    now_ += absl::Seconds(10);
    scheduler.OnLeft(2, true, now_);
    EXPECT_TRUE(Poll(scheduler).empty());
  }
  EXPECT_EQ(scheduler.counters().queued, 0);
}

TEST(PrefetchOptionsTest, MistakesAreNamed) {
  PAGODA_EXPECT_OK(Options{}.Validate());
  const auto broken = [](auto change, const char* word) {
    Options options;
    change(options);
    EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, word));
  };
  broken([](Options& o) { o.bytes_per_second = 0; }, "bytes_per_second");
  broken([](Options& o) { o.heat.hbm_min = 1; }, "hbm_min");
  broken([](Options& o) { o.heat.half_life = absl::ZeroDuration(); }, "half_life");
  broken([](Options& o) { o.returns.low = 0.95; }, "returns.low");
  broken([](Options& o) { o.successors.confidence_min = 1.5; }, "confidence_min");
  broken([](Options& o) { o.successors.uses_max = 1; }, "uses_max");
}

// What was asked, and what was loaded, add up in every source.
void ExpectAddsUp(const Counters& counters, uint32_t seed, int step) {
  int64_t asked = 0;
  int64_t ended = counters.queued + counters.loading;
  int64_t loaded = 0;
  int64_t spent = counters.resident;
  for (const SourceCounters& source : counters.by_source) {
    asked += source.asked;
    ended += source.loaded;
    for (const int64_t dropped : source.dropped) ended += dropped;
    loaded += source.loaded;
    spent += source.used + source.late + source.unused;
  }
  ASSERT_EQ(asked, ended) << "seed " << seed << " step " << step;
  ASSERT_EQ(loaded, spent) << "seed " << seed << " step " << step;
}

TEST_F(SchedulerTest, RandomRunsAddUpAndReadNothingForbidden) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 rng(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
    Options options;
    options.queue_pages_max = 12;
    options.loads_max = 3;
    options.bytes_per_second = 5000;
    options.returns.gaps_min = 2;
    Scheduler scheduler(options);
    world_ = FakeWorld();
    world_.room = 12;
    OnSsd(1, 40);
    for (PageId page = 2; page <= 40; ++page) world_.parents[page] = page % 8 == 1 ? 0 : page - 1;
    int64_t read_bytes = 0;
    const absl::Duration start = now_;
    for (int step = 0; step < 2000; ++step) {
      now_ += absl::Milliseconds(below(100));
      const PageId page = 1 + below(40);
      switch (below(6)) {
        case 0:
          Hint(scheduler, page, static_cast<int>(below(4)), below(3));
          break;
        case 1: {
          std::vector<PageId> chain;
          for (PageId p = (page - 1) / 8 * 8 + 1; p <= page; ++p) chain.push_back(p);
          Use(scheduler, chain, 1 + below(3));
          break;
        }
        case 2:
          scheduler.Cancel(below(3));
          break;
        case 3:
          if (world_.pages[page] == Where::kLoading) Arrive(scheduler, page, below(4) != 0);
          break;
        case 4:
          if (world_.pages[page] != Where::kHost) break;
          world_.pages[page] = Where::kSsd;
          scheduler.OnLeft(page, true, now_);
          break;
        default: {
          const std::set<PageId> locked = {1 + below(40), 1 + below(40)};
          world_.locked = locked;
          world_.victims.clear();
          const std::vector<PageId> read = Poll(scheduler);  // checks that each is on SSD
          ASSERT_LE(world_.taken(), world_.room);
          read_bytes += kPageBytes * static_cast<int64_t>(read.size());
          ASSERT_LE(read_bytes, absl::ToDoubleSeconds(now_ - start) * 5000 + 1250 + kPageBytes);
          for (const PageId victim : world_.victims) {
            ASSERT_FALSE(locked.contains(victim));
            scheduler.OnLeft(victim, true, now_);
          }
          ASSERT_LE(scheduler.counters().loading, 3);
        }
      }
      ASSERT_LE(scheduler.counters().queued, 12);
      ExpectAddsUp(scheduler.counters(), seed, step);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace pagoda::prefetch
