// Goal: all are taken in where LRU can keep them, a share where it cannot, and that pays; who is
// refused is refused at every turn; LRU's order and the leaf rule hold within. Method: streams of
// conversations whose turns return after a fixed number of others, beside lru.
#include "storage/policy/cohort_policy.h"

#include <gtest/gtest.h>

#include <memory>

#include "storage/policy/lru_policy.h"

namespace pagoda::policy {
namespace {

using Ids = std::vector<EntryId>;

bool Any(EntryId) { return true; }

uint64_t Fingerprint(EntryId id) { return id * uint64_t{0x9e3779b97f4a7c15}; }

// Conversations of kPages pages below one common root. Each has two turns, and `gap` others begin
// between them.
class Conversations {
 public:
  static constexpr EntryId kRoot = 1;
  static constexpr EntryId kPages = 8;

  Conversations(EvictionPolicy& policy, int64_t capacity, EntryId gap)
      : policy_(policy), capacity_(capacity), gap_(gap) {
    policy_.set_capacity_bytes(capacity);
  }

  // The share of second turns' pages that were there.
  double Run(EntryId begin, EntryId end) {
    int64_t hits = 0;
    for (EntryId c = begin; c < end; ++c) {
      Turn(c);
      if (c >= gap_) hits += Turn(c - gap_);
    }
    return static_cast<double>(hits) / (static_cast<double>(end - begin) * kPages);
  }

 private:
  int64_t Turn(EntryId conversation) {
    int64_t hits = 0;
    EntryId parent = kRoot;
    if (policy_.resident(kRoot)) {
      policy_.Touch(kRoot);
    } else {
      policy_.Insert({kRoot, kNoEntry, 1, Fingerprint(kRoot)});
    }
    for (EntryId page = 0; page < kPages; ++page) {
      const EntryId id = 2 + conversation * kPages + page;
      if (policy_.resident(id)) {
        policy_.Touch(id);
        ++hits;
      } else {
        policy_.Insert({id, parent, 1, Fingerprint(id)});
      }
      parent = id;
    }
    const int64_t excess = policy_.bytes() - capacity_;
    if (excess > 0) {
      for (const EntryId victim : policy_.PickVictims(excess, Any)) policy_.Remove(victim);
    }
    return hits;
  }

  EvictionPolicy& policy_;
  const int64_t capacity_;
  const EntryId gap_;
};

TEST(CohortPolicyTest, TakesAllInWhereTheyReturnInTime) {
  CohortPolicy cohort;
  LruPolicy lru;
  Conversations with_cohort(cohort, 4000, 200);
  Conversations with_lru(lru, 4000, 200);
  EXPECT_EQ(with_cohort.Run(0, 20000), with_lru.Run(0, 20000));
  EXPECT_EQ(cohort.admitted_share(), 1);
}

TEST(CohortPolicyTest, KeepsAShareWhereLruKeepsNothing) {
  CohortPolicy cohort;
  LruPolicy lru;
  // A turn returns after 2.4 capacities of other pages.
  Conversations with_cohort(cohort, 2000, 300);
  Conversations with_lru(lru, 2000, 300);
  with_cohort.Run(0, 20000);
  with_lru.Run(0, 20000);
  EXPECT_LT(with_lru.Run(20000, 40000), 0.01);
  EXPECT_GT(with_cohort.Run(20000, 40000), 0.15);
  EXPECT_LT(cohort.admitted_share(), 1);
}

TEST(CohortPolicyTest, TakesAllInAgainWhenTheLoadFalls) {
  CohortPolicy cohort;
  Conversations busy(cohort, 2000, 300);
  busy.Run(0, 20000);
  ASSERT_LT(cohort.admitted_share(), 1);
  Conversations quiet(cohort, 2000, 50);
  quiet.Run(20000, 120000);
  EXPECT_EQ(cohort.admitted_share(), 1);
  EXPECT_GT(quiet.Run(120000, 121000), 0.9);
}

TEST(CohortPolicyTest, WithoutACapacityItIsLruWithABonus) {
  CohortPolicy cohort;
  for (EntryId id = 1; id <= 4; ++id) cohort.Insert({id, kNoEntry, 1, Fingerprint(id)});
  cohort.Touch(1);
  EXPECT_EQ(cohort.PickVictims(100, Any), Ids({2, 3, 4, 1}));
}

TEST(CohortPolicyTest, LeavesGoFirstAndLocksHold) {
  CohortPolicy cohort;
  cohort.set_capacity_bytes(100);
  cohort.Insert({1, kNoEntry, 10, Fingerprint(1)});
  cohort.Insert({2, 1, 10, Fingerprint(2)});
  cohort.Insert({3, 2, 10, Fingerprint(3)});
  EXPECT_EQ(cohort.PickVictims(1000, Any), Ids({3, 2, 1}));
  cohort.Lock(2);
  EXPECT_EQ(cohort.PickVictims(1000, Any), Ids({3}));
  cohort.Unlock(2);
  cohort.Remove(3);
  EXPECT_EQ(cohort.PickVictims(1, Any), Ids({2}));
}

// Memory for the sample follows the residents: nothing is left behind by those that go.
TEST(CohortPolicyTest, RemovedEntriesMayComeBackUnderOtherIds) {
  CohortPolicy cohort;
  cohort.set_capacity_bytes(64);
  for (int round = 0; round < 1000; ++round) {
    for (EntryId id = 1; id <= 8; ++id) cohort.Insert({id, id - 1, 8, Fingerprint(round * 8 + id)});
    for (EntryId id = 8; id >= 1; --id) cohort.Touch(id);
    for (EntryId id = 8; id >= 1; --id) cohort.Remove(id);
  }
  EXPECT_EQ(cohort.entry_count(), 0);
  EXPECT_EQ(cohort.bytes(), 0);
}

}  // namespace
}  // namespace pagoda::policy
