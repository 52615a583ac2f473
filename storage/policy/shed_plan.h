// What a full tier may expect of pages that were asked to become smaller (the daemon drops their lo
// planes), so that it demotes no more than what is then still too much. Pure: events in, bytes out.
//
//   excess -> Ask(page, bytes it will free) ... -> Settle(page): it is smaller, replaced or gone
//                                               -> Refuse(page): it cannot become smaller
//                                               -> late, `patience` after it was asked
//
// A page that is late or refused counts no more, may be demoted like any other, and is not asked
// again until it settles after all. However many pages are asked one after another, promises hold
// off demotion for one `patience` since the excess began, and again only once it was gone.
//
// Threads  externally synchronised      Cost  amortised O(1) an event
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "storage/policy/eviction_policy.h"

namespace pagoda::policy {

class ShedPlan {
 public:
  explicit ShedPlan(absl::Duration patience) : patience_(patience) {}

  // Bytes still missing of `excess_bytes` when all promises are kept; never negative.
  int64_t MissingBytes(int64_t excess_bytes, absl::Duration now) {
    NoteLate(now);
    return excess_bytes > promised_bytes_ ? excess_bytes - promised_bytes_ : 0;
  }
  // The tier's excess as it is now, at every look; what is on its way out included.
  void NoteExcess(int64_t excess_bytes, absl::Duration now) {
    if (excess_bytes <= 0) {
      excess_since_.reset();
    } else if (!excess_since_.has_value()) {
      excess_since_ = now;
    }
  }
  // Whether promises still stand for demotions.
  bool HoldsOff(absl::Duration now) const {
    return excess_since_.has_value() && now - *excess_since_ < patience_;
  }
  bool asked(EntryId id) const { return promises_.contains(id); }
  bool AskedInTime(EntryId id, absl::Duration now) {
    NoteLate(now);
    return asked(id);
  }
  bool MayAsk(EntryId id) const { return !asked(id) && !late_.contains(id); }
  // REQUIRES: MayAsk(id); bytes > 0; `now` does not run backwards.
  void Ask(EntryId id, int64_t bytes, absl::Duration now) {
    promises_.emplace(id, bytes);
    promised_bytes_ += bytes;
    order_.emplace_back(now + patience_, id);
  }
  // Idempotent.
  void Settle(EntryId id) {
    late_.erase(id);
    Forget(id);
  }
  // Nothing unless it was asked.
  void Refuse(EntryId id) {
    if (Forget(id)) late_.insert(id);
  }
  int64_t promised_bytes() const { return promised_bytes_; }

 private:
  void NoteLate(absl::Duration now) {
    while (!order_.empty() && order_.front().first <= now) {
      // What is left of an earlier promise of the same page ends a later one early: that costs a
      // demotion at worst.
      if (Forget(order_.front().second)) late_.insert(order_.front().second);
      order_.pop_front();
    }
  }
  bool Forget(EntryId id) {
    const auto it = promises_.find(id);
    if (it == promises_.end()) return false;
    promised_bytes_ -= it->second;
    promises_.erase(it);
    return true;
  }

  const absl::Duration patience_;
  absl::flat_hash_map<EntryId, int64_t> promises_;
  absl::flat_hash_set<EntryId> late_;  // or refused
  std::optional<absl::Duration> excess_since_;
  std::deque<std::pair<absl::Duration, EntryId>> order_;  // by time; some are settled
  int64_t promised_bytes_ = 0;
};

}  // namespace pagoda::policy
