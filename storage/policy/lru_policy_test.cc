// Goal: victims are the least recently used leaves, always. Method: small cases by hand, and long
// seeded random runs against a model that searches all entries each time.
#include "storage/policy/lru_policy.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace pagoda::policy {
namespace {

bool Any(EntryId) { return true; }

std::vector<EntryId> Pick(LruPolicy& lru, int64_t bytes) { return lru.PickVictims(bytes, Any); }
using Ids = std::vector<EntryId>;

TEST(LruPolicyTest, LeafGoesBeforeItsOlderParent) {
  LruPolicy lru;
  lru.Insert({1, kNoEntry, 10});
  lru.Insert({2, 1, 10});
  lru.Insert({3, 2, 10});
  lru.Insert({4, kNoEntry, 10});
  EXPECT_EQ(Pick(lru, 1), Ids({3}));
  EXPECT_EQ(Pick(lru, 11), Ids({3, 2}));  // 2 is older than 4 once 3 is picked
  EXPECT_EQ(Pick(lru, 1000), Ids({3, 2, 1, 4}));
  lru.Touch(3);  // leaf first, so the root ends up newest
  lru.Touch(2);
  lru.Touch(1);
  EXPECT_EQ(Pick(lru, 1000), Ids({4, 3, 2, 1}));
  EXPECT_EQ(lru.bytes(), 40);
}

TEST(LruPolicyTest, PickingChangesNothing) {
  LruPolicy lru;
  for (EntryId id = 1; id <= 100; ++id) lru.Insert({id, id - 1, 1});
  const Ids first = Pick(lru, 50);
  EXPECT_EQ(Pick(lru, 50), first);
  EXPECT_EQ(first.front(), 100u);
}

TEST(LruPolicyTest, LockedEntriesKeepTheirAncestors) {
  LruPolicy lru;
  lru.Insert({1, kNoEntry, 10});
  lru.Insert({2, 1, 20});
  lru.Insert({3, 1, 30});
  lru.Lock(2);
  lru.Lock(2);
  EXPECT_EQ(lru.locked_bytes(), 20);
  EXPECT_EQ(Pick(lru, 1000), Ids({3}));
  lru.Resize(2, 25);
  EXPECT_EQ(lru.locked_bytes(), 25);
  EXPECT_EQ(lru.bytes(), 65);
  lru.Unlock(2);
  EXPECT_EQ(lru.locked_bytes(), 0);
  EXPECT_EQ(Pick(lru, 1000), Ids({2, 3, 1}));
  lru.Lock(3);
  lru.Remove(3);  // forgets the lock
  EXPECT_EQ(lru.locked_bytes(), 0);
}

TEST(LruPolicyTest, RefusedEntriesKeepTheirAncestors) {
  LruPolicy lru;
  lru.Insert({1, kNoEntry, 1});
  lru.Insert({2, 1, 1});
  lru.Insert({3, kNoEntry, 1});
  EXPECT_EQ(lru.PickVictims(10, [](EntryId id) { return id != 2; }), Ids({3}));
}

TEST(LruPolicyTest, ParentMayComeAfterItsChild) {
  LruPolicy lru;
  lru.Insert({2, 1, 1});
  EXPECT_EQ(lru.child_count(1), 1u);
  lru.Insert({1, kNoEntry, 1});
  EXPECT_EQ(Pick(lru, 1), Ids({2}));
  lru.Remove(1);  // the middle may go by request
  EXPECT_EQ(Pick(lru, 10), Ids({2}));
  lru.Remove(2);
  EXPECT_EQ(lru.child_count(1), 0u);
  EXPECT_EQ(lru.entry_count(), 0);
}

// The definition, written down without any cleverness.
class NaiveLru {
 public:
  struct Entry {
    EntryId parent;
    int64_t bytes;
    uint64_t time;
    bool locked;
  };
  std::map<EntryId, Entry> entries;
  uint64_t now = 0;

  Ids Pick(int64_t bytes, const std::set<EntryId>& refused) const {
    Ids victims;
    std::map<EntryId, Entry> left = entries;
    for (int64_t picked = 0; picked < bytes;) {
      EntryId best = kNoEntry;
      for (const auto& [id, entry] : left) {
        bool leaf = !entry.locked && !refused.contains(id);
        for (const auto& [other, child] : left) leaf = leaf && child.parent != id;
        if (leaf && (best == kNoEntry || entry.time < left.at(best).time)) best = id;
      }
      if (best == kNoEntry) break;
      victims.push_back(best);
      picked += left.at(best).bytes;
      left.erase(best);
    }
    return victims;
  }
};

TEST(LruPolicyTest, RandomRunsEqualTheModel) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 rng(seed);
    LruPolicy lru;
    NaiveLru model;
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
    for (int step = 0; step < 1500; ++step) {
      const EntryId id = 1 + below(24);
      const auto it = model.entries.find(id);
      const bool there = it != model.entries.end();
      switch (below(8)) {
        case 0:
        case 1:
          if (there) break;
          {
            const EntryId parent = below(id);  // smaller ids are ancestors: no circle
            const int64_t bytes = 1 + below(9);
            lru.Insert({id, parent, bytes});
            model.entries[id] = {parent, bytes, model.now++, false};
          }
          break;
        case 2:
        case 3:
          if (!there) break;
          lru.Touch(id);
          it->second.time = model.now++;
          break;
        case 4:
          if (!there) break;
          lru.Remove(id);
          model.entries.erase(it);
          break;
        case 5:
          if (!there) break;
          it->second.locked = !it->second.locked;
          it->second.locked ? lru.Lock(id) : lru.Unlock(id);
          break;
        case 6:
          if (!there) break;
          it->second.bytes = 1 + below(9);
          lru.Resize(id, it->second.bytes);
          break;
        default:
          const int64_t bytes = below(60);
          const std::set<EntryId> refused = {1 + below(24), 1 + below(24)};
          ASSERT_EQ(lru.PickVictims(bytes, [&](EntryId other) { return !refused.contains(other); }),
                    model.Pick(bytes, refused))
              << "seed " << seed << " step " << step;
      }
      int64_t bytes = 0;
      int64_t locked_bytes = 0;
      for (const auto& [other, entry] : model.entries) {
        bytes += entry.bytes;
        if (entry.locked) locked_bytes += entry.bytes;
      }
      ASSERT_EQ(lru.bytes(), bytes);
      ASSERT_EQ(lru.locked_bytes(), locked_bytes);
    }
  }
}

}  // namespace
}  // namespace pagoda::policy
