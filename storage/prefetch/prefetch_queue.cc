#include "storage/prefetch/prefetch_queue.h"

#include <algorithm>

#include "storage/base/check.h"

namespace pagoda::prefetch {

std::optional<QueueItem> PrefetchQueue::Offer(const QueueItem& item) {
  PAGODA_CHECK(item.page != kNoPage);
  const auto known = slots_.find(item.page);
  if (known != slots_.end()) {
    const Slot old = known->second;
    QueueItem merged = old.item;
    QueueItem loser = item;
    if (std::make_pair(RankOf(item.source), item.deadline) <
        std::make_pair(old.place.rank, old.place.deadline)) {
      merged.source = item.source;
      merged.deadline = item.deadline;
      loser = old.item;
    }
    merged.expires = std::max(old.item.expires, item.expires);
    merged.worth = std::max(old.item.worth, item.worth);
    if (old.item.owner != item.owner) merged.owner = 0;
    Take(item.page);
    Put(merged, old.place.number);
    return loser;
  }
  std::optional<QueueItem> loser;
  if (slots_.size() >= pages_max_) {
    const Place place{RankOf(item.source), item.deadline, next_number_};
    if (pages_max_ == 0 || !(place < by_urgency_.rbegin()->first)) return item;
    loser = Take(by_urgency_.rbegin()->second);
  }
  Put(item, next_number_++);
  return loser;
}

std::optional<QueueItem> PrefetchQueue::Pop() {
  if (by_urgency_.empty()) return std::nullopt;
  return Take(by_urgency_.begin()->second);
}

QueueItem PrefetchQueue::Take(PageId page) {
  const auto it = slots_.find(page);
  PAGODA_CHECK(it != slots_.end());
  const Slot slot = it->second;
  by_urgency_.erase(slot.place);
  if (slot.item.owner != 0) by_owner_.erase({slot.item.owner, page});
  slots_.erase(it);
  return slot.item;
}

void PrefetchQueue::Put(const QueueItem& item, uint64_t number) {
  const Place place{RankOf(item.source), item.deadline, number};
  slots_.emplace(item.page, Slot{item, place});
  by_urgency_.emplace(place, item.page);
  if (item.owner != 0) by_owner_.emplace(item.owner, item.page);
}

}  // namespace pagoda::prefetch
