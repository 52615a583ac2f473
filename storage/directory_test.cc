// Goal: sums are always those of the entries, chains are never wrong, ghosts come and go. Method:
// cases by hand, and seeded random runs that compare every sum with a walk over all entries.
#include "storage/directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "storage/base/testing/status_matchers.h"
#include "storage/policy/lru_policy.h"
#include "storage/subtree_walk.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

const absl::Duration kNow = absl::Seconds(50);

class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest() {
    HostTierOptions options;
    options.capacity_bytes = 64 << 20;
    tier_ = *HostTier::Create(options);
  }
  HostPagePtr Page(const TestPage& spec) {
    StagedPage staged = *StagedPage::Create(tier_, HeaderOf(spec));
    Fill(spec, staged);
    return *StagedPage::Freeze(std::move(staged));
  }
  EntryId AddHost(const TestPage& spec) { return *directory_.AddHost(Page(spec), kNow); }
  EntryId AddSsd(const TestPage& spec) {
    return *directory_.AddSsd(DirectoryRecordOf(HeaderOf(spec)), kNow);
  }

  std::shared_ptr<HostTier> tier_;
  Directory directory_;
};

TEST_F(DirectoryTest, EntryLivesAsLongAsACopy) {
  const TestPage spec = TestRoot(1);
  const EntryId id = AddHost(spec);
  EXPECT_EQ(directory_.Find(spec.record()), id);
  EXPECT_EQ(directory_.Find(spec.record(), spec.scope()), id);
  EXPECT_EQ(directory_.Find(spec.record(), ScopeIdOf({ScopeKind::kPublic, ""})), kNoEntry);
  EXPECT_EQ(directory_.dirty_count(), 1);
  directory_.SetSsd(id, directory_.best_copy_of(id));
  directory_.SetDirty(id, false);
  EXPECT_NE(directory_.DropHost(id), nullptr);
  EXPECT_EQ(directory_.Find(spec.record()), id);
  EXPECT_EQ(directory_.host_bytes(), 0);
  EXPECT_EQ(directory_.ssd_bytes(), HeaderOf(spec).stored_bytes());
  directory_.DropSsd(id);
  EXPECT_EQ(directory_.Find(spec.record()), kNoEntry);
  EXPECT_EQ(directory_.page_count(), 0);
  EXPECT_EQ(directory_.ghost_count(), 0);
  EXPECT_EQ(directory_.ssd_bytes(), 0);
  EXPECT_EQ(AddHost(TestRoot(2)), id);  // the slot is used again
}

TEST_F(DirectoryTest, LosingTheSsdCopyMakesThePageDirtyAgain) {
  const EntryId id = AddHost(TestRoot(1));
  directory_.SetSsd(id, directory_.best_copy_of(id));
  directory_.SetDirty(id, false);
  const uint32_t version = directory_.at(id).ssd_version;
  directory_.DropSsd(id);
  EXPECT_TRUE(directory_.at(id).dirty);
  EXPECT_NE(directory_.at(id).ssd_version, version);
}

TEST_F(DirectoryTest, GhostKeepsItsFollowersAndRevives) {
  const std::vector<TestPage> chain = TestChain(3);
  const EntryId root = AddHost(chain[0]);
  const EntryId middle = AddHost(chain[1]);
  const EntryId leaf = AddHost(chain[2]);
  EXPECT_EQ(directory_.at(root).child_count, 1u);
  directory_.DropHost(middle);
  EXPECT_EQ(directory_.Find(chain[1].record()), kNoEntry);
  EXPECT_EQ(directory_.ghost_count(), 1);
  EXPECT_EQ(directory_.at(root).child_count, 0u);
  EXPECT_EQ(directory_.Unreachable(), std::vector<EntryId>({leaf}));
  EXPECT_EQ(AddHost(chain[1]), middle);
  EXPECT_EQ(directory_.ghost_count(), 0);
  EXPECT_TRUE(directory_.Unreachable().empty());
  EXPECT_EQ(directory_.at(root).child_count, 1u);
  EXPECT_EQ(directory_.host_policy().child_count(middle), 1u);
  directory_.DropHost(middle);
  directory_.DropHost(leaf);  // the ghost goes with its last follower
  EXPECT_EQ(directory_.ghost_count(), 0);
}

TEST_F(DirectoryTest, RecordsMayComeInAnyOrder) {
  const std::vector<TestPage> chain = TestChain(4);
  for (const int i : {2, 0, 3}) AddSsd(chain[i]);
  EXPECT_EQ(directory_.Unreachable().size(), 2u);
  EXPECT_EQ(directory_.Unreachable().front(), directory_.Find(chain[3].record()));
  AddSsd(chain[1]);
  EXPECT_TRUE(directory_.Unreachable().empty());
  EXPECT_EQ(directory_.ghost_count(), 0);
}

TEST_F(DirectoryTest, NoPageIsItsOwnAncestor) {
  const TestPage root = TestRoot(1);
  DirectoryRecord record = DirectoryRecordOf(HeaderOf(root));
  record.parent_is_root = false;
  record.parent = record.record.key;
  EXPECT_THAT(directory_.AddSsd(record, kNow), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(directory_.ghost_count(), 0);
  // And around a corner: the ghost of `root` has a follower; root may not follow that.
  const TestPage child = root.Child(2);
  AddSsd(child);
  record.parent = child.record().key;
  EXPECT_THAT(directory_.AddSsd(record, kNow), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(directory_.ghost_count(), 1);
  AddSsd(root);
  EXPECT_EQ(directory_.ghost_count(), 0);
}

TEST_F(DirectoryTest, SubtreesComeLeavesFirst) {
  const std::vector<TestPage> chain = TestChain(5);
  std::vector<EntryId> ids;
  for (const TestPage& page : chain) ids.push_back(AddHost(page));
  AddHost(chain[0].Child(99));
  SubtreeWalk walk;
  for (EntryId at = 1; at < directory_.slot_count(); at += 2) {
    walk.Scan(directory_, at, at + 2, [&](EntryId id) { return id == ids[2]; });
  }
  std::vector<EntryId> found;
  for (const SubtreeWalk::Found& one : walk.Take()) found.push_back(one.id);
  EXPECT_EQ(found, std::vector<EntryId>({ids[4], ids[3], ids[2]}));
}

// A slot that is used again between two slices is not judged by what was there before.
TEST_F(DirectoryTest, AWalkInSlicesSeesWhatASlotHoldsNow) {
  const TestPage root = TestRoot(1);
  const EntryId first = AddHost(root);
  SubtreeWalk walk;
  walk.Scan(directory_, 1, first + 1, [&](EntryId id) { return id == first; });
  directory_.DropHost(first);
  const TestPage other = TestRoot(2);
  ASSERT_EQ(AddHost(other), first);
  const EntryId child = AddHost(other.Child(3));
  walk.Scan(directory_, first + 1, directory_.slot_count(), [](EntryId) { return false; });
  const std::vector<SubtreeWalk::Found> found = walk.Take();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].id, first);
  EXPECT_NE(found[0].incarnation, directory_.at(first).incarnation);
  EXPECT_TRUE(directory_.at(child).alive());
}

TEST_F(DirectoryTest, LocksFollowThePageThroughTheTiers) {
  const EntryId id = AddSsd(TestRoot(1));
  const int64_t bytes = directory_.ssd_bytes();
  directory_.AddLease(id);
  directory_.AddLease(id);
  directory_.SetPinned(id, true);
  EXPECT_EQ(directory_.ssd_policy().locked_bytes(), bytes);
  directory_.SetHost(id, Page(TestRoot(1)), /*dirty=*/false);
  EXPECT_EQ(directory_.host_policy().locked_bytes(), bytes);
  directory_.RemoveLease(id);
  directory_.RemoveLease(id);
  EXPECT_EQ(directory_.leased_count(), 0);
  EXPECT_EQ(directory_.host_policy().locked_bytes(), bytes);
  directory_.SetPinned(id, false);
  EXPECT_EQ(directory_.host_policy().locked_bytes(), 0);
  EXPECT_EQ(directory_.pinned_count(), 0);
}

TEST_F(DirectoryTest, AnotherPolicyKeepsTheOrderOfUseAndTheLocks) {
  std::vector<EntryId> ids;
  for (uint32_t i = 1; i <= 4; ++i) ids.push_back(AddHost(TestRoot(i)));
  directory_.SetSsd(ids[0], directory_.best_copy_of(ids[0]));
  directory_.Touch(ids[1], kNow + absl::Seconds(9));
  directory_.Touch(ids[0], kNow + absl::Seconds(5));
  directory_.Touch(ids[3], kNow + absl::Seconds(2));
  directory_.SetPinned(ids[0], true);
  const int64_t bytes = directory_.host_bytes();
  directory_.SetHostPolicy(std::make_unique<policy::LruPolicy>());
  directory_.SetSsdPolicy(std::make_unique<policy::LruPolicy>());
  EXPECT_EQ(directory_.host_bytes(), bytes);
  EXPECT_EQ(directory_.host_policy().locked_bytes(), bytes / 4);
  EXPECT_EQ(directory_.ssd_policy().locked_bytes(), directory_.ssd_bytes());
  EXPECT_EQ(directory_.host_policy().PickVictims(bytes, [](EntryId) { return true; }),
            std::vector<EntryId>({ids[2], ids[3], ids[1]}));
  PAGODA_EXPECT_OK(directory_.CheckSums());
}

TEST_F(DirectoryTest, RandomRunsKeepEverySum) {
  std::vector<TestPage> specs = TestChain(6);
  for (const TestPage& page : TestChain(6, 100, specs[0])) specs.push_back(page);
  for (int i = 0; i < 6; ++i) specs.push_back(specs[2].Child(500 + i));
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    std::mt19937 rng(seed);
    Directory directory;
    for (int step = 0; step < 1500; ++step) {
      TestPage spec = specs[rng() % specs.size()];
      spec.precision = rng() % 2 == 0 ? Precision::kRaw16 : Precision::kQ8;
      const EntryId id = directory.Find(spec.record());
      const bool alive = id != kNoEntry;
      switch (rng() % 8) {
        case 0:
          if (!alive) {
            PAGODA_ASSERT_OK(directory.AddHost(Page(spec), kNow));
          }
          break;
        case 1:
          if (!alive) {
            PAGODA_ASSERT_OK(directory.AddSsd(DirectoryRecordOf(HeaderOf(spec)), kNow));
          }
          break;
        case 2:
          if (alive) directory.SetHost(id, Page(spec), rng() % 2 == 0);
          break;
        case 3:
          if (alive) directory.SetSsd(id, {4096, 1, Precision::kQ4, Precision::kRaw16});
          break;
        case 4:
          if (alive && directory.at(id).host != nullptr) directory.DropHost(id);
          break;
        case 5:
          if (alive && directory.at(id).on_ssd()) directory.DropSsd(id);
          break;
        case 6:
          if (alive) directory.AddLease(id);
          break;
        default:
          if (alive && directory.at(id).lease_count > 0) directory.RemoveLease(id);
          if (alive) directory.SetPinned(id, rng() % 2 == 0);
      }
      StoreStats expected;
      int64_t dirty = 0;
      int64_t leased = 0;
      int64_t pinned = 0;
      for (EntryId at = 1; at < directory.slot_count(); ++at) {
        const DirectoryEntry& entry = directory.at(at);
        if (!entry.alive()) continue;
        ++expected.page_count;
        dirty += entry.dirty ? 1 : 0;
        leased += entry.lease_count > 0 ? 1 : 0;
        pinned += entry.pinned ? 1 : 0;
        if (entry.host != nullptr) expected.host.page_bytes += entry.host->bytes();
        if (entry.host != nullptr && entry.locked()) {
          expected.host.pinned_bytes += entry.host->bytes();
        }
        expected.ssd.page_bytes += entry.ssd_bytes();
        uint32_t children = 0;
        for (EntryId other = 1; other < directory.slot_count(); ++other) {
          children += directory.at(other).alive() && directory.at(other).parent == at ? 1 : 0;
        }
        ASSERT_EQ(entry.child_count, children) << "seed " << seed << " step " << step;
      }
      StoreStats stats;
      directory.FillStats(stats);
      ASSERT_EQ(stats.page_count, expected.page_count) << "seed " << seed << " step " << step;
      ASSERT_EQ(stats.host.page_bytes, expected.host.page_bytes);
      ASSERT_EQ(stats.host.pinned_bytes, expected.host.pinned_bytes);
      ASSERT_EQ(stats.ssd.page_bytes, expected.ssd.page_bytes);
      ASSERT_EQ(stats.dirty_page_count, dirty);
      ASSERT_EQ(stats.leased_page_count, leased);
      ASSERT_EQ(stats.pinned_page_count, pinned);
      int64_t by_precision = 0;
      for (const auto& [precision, count] : stats.host.pages_by_precision) {
        ASSERT_GE(count, 0);
        by_precision += count;
      }
      ASSERT_EQ(by_precision, stats.host.page_count);
      ASSERT_EQ(stats.scopes.empty(), stats.page_count == 0);
      if (!stats.scopes.empty()) {
        ASSERT_EQ(stats.scopes[0].host_bytes, expected.host.page_bytes);
        ASSERT_EQ(stats.scopes[0].ssd_bytes, expected.ssd.page_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace pagoda
