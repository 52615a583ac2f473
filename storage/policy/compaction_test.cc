// Goal: a chunk is emptied only when its slabs fit elsewhere, the cheapest first, and never faster
// than allowed. Method: cases at each edge.
#include "storage/policy/compaction.h"

#include <gtest/gtest.h>

#include <vector>

namespace pagoda::policy {
namespace {

ChunkFill Fill(uint32_t chunk, uint32_t live, uint32_t group = 0, uint32_t slots = 10) {
  return {
      .chunk = chunk, .group = group, .slot_count = slots, .live_count = live, .slab_bytes = 4096};
}
using Chunks = std::vector<ChunkFill>;

TEST(CompactionTest, SlabsMustFitIntoTheHolesOfTheirGroup) {
  EXPECT_EQ(PickChunkToEmpty(Chunks{}), std::nullopt);
  EXPECT_EQ(PickChunkToEmpty(Chunks{Fill(0, 1)}), std::nullopt);  // alone
  EXPECT_EQ(PickChunkToEmpty(Chunks{Fill(0, 7), Fill(1, 3)}), 1u);
  EXPECT_EQ(PickChunkToEmpty(Chunks{Fill(0, 8), Fill(1, 3)}), std::nullopt);
  EXPECT_EQ(PickChunkToEmpty(Chunks{Fill(0, 8), Fill(1, 8), Fill(2, 4)}), 2u);  // two by two
  EXPECT_EQ(PickChunkToEmpty(Chunks{Fill(0, 7, 1), Fill(1, 3, 2)}), std::nullopt);
}

TEST(CompactionTest, CheapestFirstThenTheHighest) {
  EXPECT_EQ(PickChunkToEmpty(Chunks{Fill(0, 2), Fill(1, 1), Fill(2, 3)}), 1u);
  EXPECT_EQ(PickChunkToEmpty(Chunks{Fill(0, 2), Fill(1, 2), Fill(2, 3)}), 1u);
  Chunks stuck = {Fill(0, 2), Fill(1, 1), Fill(2, 3)};
  stuck[1].stuck = true;
  EXPECT_EQ(PickChunkToEmpty(stuck), 0u);
  Chunks classes = {Fill(0, 2, 1), Fill(1, 2, 1), Fill(2, 2, 2), Fill(3, 2, 2)};
  classes[2].slab_bytes = classes[3].slab_bytes = 100;  // fewer bytes for one more chunk
  EXPECT_EQ(PickChunkToEmpty(classes), 3u);
}

TEST(CompactionTest, HolesMatterWhenChunksAreScarce) {
  const Watermarks marks;  // 0.85
  EXPECT_FALSE(IsFragmented(100, 800, 1000, 100, marks));
  EXPECT_TRUE(IsFragmented(100, 900, 1000, 100, marks));
  EXPECT_TRUE(IsFragmented(800, 900, 1000, 100, marks));
  EXPECT_FALSE(IsFragmented(801, 900, 1000, 100, marks));
}

TEST(CompactionTest, BudgetFillsWithTimeAndIsPaidBack) {
  MoveBudget budget(1000);
  EXPECT_EQ(budget.Available(absl::Seconds(5)), 0);
  EXPECT_EQ(budget.Available(absl::Seconds(5.5)), 500);
  budget.Spend(800);
  EXPECT_EQ(budget.Available(absl::Seconds(5.5)), -300);
  EXPECT_EQ(budget.Available(absl::Seconds(5.4)), -300);
  EXPECT_EQ(budget.Available(absl::Seconds(6)), 200);
  EXPECT_EQ(budget.Available(absl::Seconds(600)), 1000);  // one second's worth at most
}

}  // namespace
}  // namespace pagoda::policy
