// When a conversation will continue. A conversation is known by its last page; when a request's
// chain runs through that page, it has returned, and the pause is one more sample of its tenant's
// gaps. A conversation is due from the low quantile of those gaps on, and given up after the high
// one. Pure.
//
// Threads    externally synchronised; times never go back
// Limits     conversations_max, tenants_max: the conversation that is silent for longest is
//            forgotten; tenants beyond the limit are not predicted
// Cost       OnLookup: a hash look-up for each of the last pages of the chain; else O(log n)
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/prefetch/gap_histogram.h"
#include "storage/prefetch/prefetch_page.h"

namespace pagoda::prefetch {

class ReturnPredictor {
 public:
  struct Options {
    double low = 0.2;  // promote when this share of the returns has come
    double high = 0.9;
    absl::Duration turn_min = absl::Seconds(1);  // sooner is the same turn asking again
    int64_t gaps_min = 8;                        // samples of a tenant before anything is predicted
    int64_t conversations_max = 65536;
    int64_t tenants_max = 1024;
    int64_t tail_search_max = 256;  // pages a turn may add before it is taken for another one
  };
  struct Due {
    PageId tail;
    absl::Duration give_up;  // when the prediction is dropped
  };
  explicit ReturnPredictor(const Options& options) : options_(options) {}

  // A request used this chain, root first.
  void OnLookup(uint32_t tenant, absl::Span<const PageId> chain, absl::Duration now);
  // A page was stored after `parent`: the conversation's end moves.
  void OnCommit(PageId parent, PageId page, absl::Duration now);
  // Conversations that became due since the last call.
  std::vector<Due> TakeDue(absl::Duration now);

  int64_t conversation_count() const { return static_cast<int64_t>(conversations_.size()); }
  int64_t gap_count(uint32_t tenant) const;

 private:
  using ByAge = absl::btree_set<std::pair<absl::Duration, PageId>>;
  struct Conversation {
    uint32_t tenant = 0;
    absl::Duration last;
    bool predicted = false;
  };
  struct Tenant {
    GapHistogram gaps;
    ByAge waiting;  // not predicted yet
  };
  void Insert(PageId tail, uint32_t tenant, absl::Duration now);
  Conversation Remove(PageId tail);

  const Options options_;
  absl::flat_hash_map<PageId, Conversation> conversations_;
  absl::flat_hash_map<uint32_t, Tenant> tenants_;
  ByAge by_age_;  // all of them
};

}  // namespace pagoda::prefetch
