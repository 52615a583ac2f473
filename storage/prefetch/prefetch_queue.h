// Pages that wait to be brought up: by rank of their source, then earliest deadline first, then in
// the order they came. Bounded, one entry a page. Pure.
//
// A page that is asked for twice keeps its better place and its later expiry, and is then nobody's
// to cancel: the one who stays still wants it.
//
// Threads    externally synchronised
// Limits     pages_max; when full, the least urgent entry goes
// Cost       Offer, Pop: O(log n); Cancel: O(entries of the owner + log n)
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "storage/prefetch/prefetch_page.h"

namespace pagoda::prefetch {

struct QueueItem {
  PageId page = kNoPage;
  Source source = Source::kHint;
  absl::Duration deadline;  // when it will be used; orders the queue
  absl::Duration expires;   // from then on it is of no use
  uint64_t owner = 0;       // who may cancel it; 0: nobody
  double worth = 0;         // uses expected of it: what it may displace is colder than this
};

class PrefetchQueue {
 public:
  explicit PrefetchQueue(size_t pages_max) : pages_max_(pages_max) {}

  // The item that is left without a place, if one is: this one or the least urgent one when the
  // queue is full; when the page waits already (same page), the one of the two whose source lost.
  std::optional<QueueItem> Offer(const QueueItem& item);
  // The most urgent one, or nothing. It may have expired.
  std::optional<QueueItem> Pop();
  // Takes out everything of this owner; calls back with each item.
  template <typename F>
  void Cancel(uint64_t owner, F&& on_cancelled) {
    for (auto it = by_owner_.lower_bound({owner, kNoPage});
         owner != 0 && it != by_owner_.end() && it->first == owner;
         it = by_owner_.lower_bound({owner, kNoPage})) {
      on_cancelled(Take(it->second));
    }
  }

  bool contains(PageId page) const { return slots_.contains(page); }
  size_t size() const { return slots_.size(); }

 private:
  struct Place {
    int rank;
    absl::Duration deadline;
    uint64_t number;  // of arrival
    auto Tie() const { return std::make_tuple(rank, deadline, number); }
    bool operator<(const Place& other) const { return Tie() < other.Tie(); }
  };
  struct Slot {
    QueueItem item;
    Place place;
  };
  QueueItem Take(PageId page);
  void Put(const QueueItem& item, uint64_t number);

  const size_t pages_max_;
  uint64_t next_number_ = 1;
  absl::flat_hash_map<PageId, Slot> slots_;
  absl::btree_map<Place, PageId> by_urgency_;
  absl::btree_set<std::pair<uint64_t, PageId>> by_owner_;
};

}  // namespace pagoda::prefetch
