// Goal: the most urgent page comes first, once; nothing waits beyond the bound; what its owner
// takes back does not come. Method: cases by hand, and random runs against a list that is sorted
// anew.
#include "storage/prefetch/prefetch_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace pagoda::prefetch {
namespace {

QueueItem Item(PageId page, Source source, int deadline, uint64_t owner = 0) {
  return {page, source, absl::Seconds(deadline), absl::Seconds(deadline), owner, 1};
}

std::vector<PageId> PopAll(PrefetchQueue& queue) {
  std::vector<PageId> pages;
  while (const auto item = queue.Pop()) pages.push_back(item->page);
  return pages;
}

TEST(PrefetchQueueTest, RankThenDeadlineThenArrival) {
  PrefetchQueue queue(8);
  queue.Offer(Item(1, Source::kHotness, 1));
  queue.Offer(Item(2, Source::kHint, 9));
  queue.Offer(Item(3, Source::kSequence, 5));
  queue.Offer(Item(4, Source::kHint, 5));
  queue.Offer(Item(5, Source::kReturn, 1));
  EXPECT_EQ(PopAll(queue), (std::vector<PageId>{3, 4, 2, 5, 1}));
}

TEST(PrefetchQueueTest, AFullQueueKeepsTheMoreUrgent) {
  PrefetchQueue queue(2);
  queue.Offer(Item(1, Source::kHint, 5));
  queue.Offer(Item(2, Source::kNextPage, 5));
  EXPECT_EQ(queue.Offer(Item(3, Source::kHotness, 1))->page, 3u);  // less urgent than all
  EXPECT_EQ(queue.Offer(Item(4, Source::kHint, 6))->page, 2u);     // takes the place of the last
  EXPECT_EQ(PopAll(queue), (std::vector<PageId>{1, 4}));
}

TEST(PrefetchQueueTest, ASecondAskerMakesAPageMoreUrgentAndNobodysToCancel) {
  PrefetchQueue queue(8);
  queue.Offer(Item(1, Source::kHint, 5, 70));
  queue.Offer(Item(2, Source::kNextPage, 1));
  EXPECT_EQ(queue.Offer(Item(2, Source::kHint, 3, 71))->source, Source::kNextPage);
  EXPECT_EQ(queue.Offer(Item(1, Source::kHint, 9, 72))->owner, 72u);
  EXPECT_EQ(queue.size(), 2u);
  std::vector<PageId> cancelled;
  for (const uint64_t owner : {70, 71, 72}) {
    queue.Cancel(owner, [&](const QueueItem& item) { cancelled.push_back(item.page); });
  }
  EXPECT_TRUE(cancelled.empty());
  const QueueItem first = *queue.Pop();
  EXPECT_EQ(first.page, 2u);
  EXPECT_EQ(first.source, Source::kHint);
  const QueueItem second = *queue.Pop();
  EXPECT_EQ(second.deadline, absl::Seconds(5));
  EXPECT_EQ(second.expires, absl::Seconds(9));
}

TEST(PrefetchQueueTest, CancelTakesOneOwnersPagesOnly) {
  PrefetchQueue queue(8);
  queue.Offer(Item(1, Source::kHint, 1, 70));
  queue.Offer(Item(2, Source::kHint, 2, 71));
  queue.Offer(Item(3, Source::kHint, 3, 70));
  queue.Offer(Item(4, Source::kNextPage, 4));
  int count = 0;
  queue.Cancel(70, [&](const QueueItem&) { ++count; });
  queue.Cancel(0, [&](const QueueItem&) { ++count; });  // nobody's pages cannot be cancelled
  EXPECT_EQ(count, 2);
  EXPECT_EQ(PopAll(queue), (std::vector<PageId>{2, 4}));
}

TEST(PrefetchQueueTest, RandomRunsEqualASortedList) {
  constexpr size_t kMax = 6;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 rng(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
    PrefetchQueue queue(kMax);
    std::vector<QueueItem> model;  // in order of arrival
    const auto before = [](const QueueItem& a, const QueueItem& b) {
      return std::make_pair(RankOf(a.source), a.deadline) <
             std::make_pair(RankOf(b.source), b.deadline);
    };
    const auto find = [&](PageId page) {
      return std::find_if(model.begin(), model.end(),
                          [page](const QueueItem& i) { return i.page == page; });
    };
    for (int step = 0; step < 2000; ++step) {
      switch (below(4)) {
        case 0: {
          const auto popped = queue.Pop();
          ASSERT_EQ(popped.has_value(), !model.empty()) << "seed " << seed << " step " << step;
          if (!popped.has_value()) break;
          const auto first = std::min_element(model.begin(), model.end(), before);
          ASSERT_EQ(popped->page, first->page) << "seed " << seed << " step " << step;
          ASSERT_EQ(popped->source, first->source);
          ASSERT_EQ(popped->expires, first->expires);
          model.erase(first);
          break;
        }
        case 1: {
          const uint64_t owner = 1 + below(3);
          queue.Cancel(owner, [&](const QueueItem& item) {
            const auto it = find(item.page);
            ASSERT_NE(it, model.end());
            ASSERT_EQ(it->owner, owner);
            model.erase(it);
          });
          for (const QueueItem& item : model) ASSERT_NE(item.owner, owner);
          break;
        }
        default: {
          const QueueItem item = Item(1 + below(12), static_cast<Source>(below(kSourceCount)),
                                      static_cast<int>(below(5)), below(4));
          queue.Offer(item);
          if (const auto known = find(item.page); known != model.end()) {
            if (before(item, *known)) {
              known->source = item.source;
              known->deadline = item.deadline;
            }
            known->expires = std::max(known->expires, item.expires);
            if (known->owner != item.owner) known->owner = 0;
            break;
          }
          model.push_back(item);
          if (model.size() <= kMax) break;
          std::vector<QueueItem> sorted = model;
          std::stable_sort(sorted.begin(), sorted.end(), before);
          model.erase(find(sorted.back().page));
        }
      }
      ASSERT_EQ(queue.size(), model.size()) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace pagoda::prefetch
