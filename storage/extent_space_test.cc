// Goal: no byte is handed out twice, none is lost, and freed neighbours become one run again.
// Method: edges of Adopt, then seeded runs against a model that marks every block.
#include "storage/extent_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace pagoda {
namespace {

constexpr int64_t kBlock = kExtentAlignBytes;

TEST(ExtentSpaceTest, TakesTheSmallestRunThatFitsInTheLowestFile) {
  ExtentSpace space;
  space.AddFile(2, 100 * kBlock);
  space.AddFile(1, 100 * kBlock);
  const Extent a = *space.Allocate(10 * kBlock);
  EXPECT_EQ(a, (Extent{1, 0, 10 * kBlock}));
  const Extent b = *space.Allocate(5 * kBlock);
  const Extent c = *space.Allocate(20 * kBlock);
  ASSERT_TRUE(space.Allocate(1 * kBlock).has_value());  // keeps c away from the rest
  space.Free(a);
  space.Free(c);
  EXPECT_EQ(*space.Allocate(8 * kBlock), (Extent{1, a.offset, 8 * kBlock}));
  EXPECT_EQ(*space.Allocate(20 * kBlock), c);
  EXPECT_EQ(space.Allocate(101 * kBlock), std::nullopt);
  space.Free(b);
  EXPECT_EQ(*space.Allocate(100 * kBlock), (Extent{2, 0, 100 * kBlock}));
}

TEST(ExtentSpaceTest, AdoptRefusesWhatCannotBeAndKeepsTheRest) {
  ExtentSpace space;
  space.AddFile(1, 100 * kBlock);
  space.AddFile(2, 10 * kBlock);
  const Extent good[] = {{1, 0, kBlock}, {1, kBlock, 9 * kBlock}, {2, 0, 10 * kBlock}};
  const Extent bad[] = {
      {1, 20 * kBlock, 10 * kBlock}, {1, 25 * kBlock, 10 * kBlock},  // overlap each other
      {1, 40 * kBlock, 20 * kBlock}, {1, 41 * kBlock, kBlock},       // one inside the other
      {1, 58 * kBlock, 4 * kBlock},                                  // overlaps the outer one
      {1, 70 * kBlock, kBlock},      {1, 70 * kBlock, kBlock},       // twice the same
      {1, 99 * kBlock, 2 * kBlock},                                  // beyond the end
      {1, 80 * kBlock + 1, kBlock},  {1, 81 * kBlock, kBlock - 1},   // not aligned
      {1, 90 * kBlock, 0},           {3, 0, kBlock},
  };
  std::vector<Extent> all(std::begin(good), std::end(good));
  all.insert(all.end(), std::begin(bad), std::end(bad));
  std::vector<Extent> expected(std::begin(bad), std::end(bad));
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(space.Adopt(all), expected);
  EXPECT_EQ(space.used_bytes(), 20 * kBlock);
  EXPECT_EQ(space.free_run_count(), 1);
  EXPECT_EQ(*space.Allocate(90 * kBlock), (Extent{1, 10 * kBlock, 90 * kBlock}));
  for (const Extent& extent : good) space.Free(extent);
}

TEST(ExtentSpaceTest, RetiredFilesGiveNothingAndEmptyFilesAreNamed) {
  ExtentSpace space;
  space.AddFile(1, 4 * kBlock);
  space.AddFile(2, 4 * kBlock);
  const Extent a = *space.Allocate(kBlock);
  space.RetireFile(1);
  EXPECT_EQ(space.Allocate(4 * kBlock)->file, 2u);
  EXPECT_EQ(space.Allocate(kBlock), std::nullopt);
  EXPECT_TRUE(space.EmptyFiles().empty());
  space.Free(a);
  EXPECT_EQ(space.EmptyFiles(), std::vector<uint32_t>{1});
  EXPECT_EQ(space.Allocate(kBlock), std::nullopt);
  space.RemoveFile(1);
  EXPECT_EQ(space.total_bytes(), 4 * kBlock);
}

// What is in use, block by block.
class Model {
 public:
  void Take(const Extent& extent) {
    for (int64_t at = extent.offset; at < extent.end(); at += kBlock) {
      ASSERT_TRUE(used_.insert({extent.file, at}).second);
    }
  }
  void Give(const Extent& extent) {
    for (int64_t at = extent.offset; at < extent.end(); at += kBlock) {
      ASSERT_EQ(used_.erase({extent.file, at}), 1u);
    }
  }
  int64_t used_bytes() const { return static_cast<int64_t>(used_.size()) * kBlock; }
  // Longest free run.
  int64_t LongestFree(uint32_t file_count, int64_t file_blocks) const {
    int64_t longest = 0;
    for (uint32_t file = 1; file <= file_count; ++file) {
      int64_t run = 0;
      for (int64_t i = 0; i < file_blocks; ++i) {
        run = used_.contains({file, i * kBlock}) ? 0 : run + 1;
        longest = std::max(longest, run);
      }
    }
    return longest * kBlock;
  }

 private:
  std::set<std::pair<uint32_t, int64_t>> used_;
};

TEST(ExtentSpaceTest, SeededRunsAgreeWithAModelOfEveryBlock) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    ExtentSpace space;
    Model model;
    std::vector<Extent> live;
    for (uint32_t file = 1; file <= 3; ++file) space.AddFile(file, 64 * kBlock);
    for (int step = 0; step < 600; ++step) {
      if (rng() % 5 < 3) {
        const auto bytes = static_cast<int64_t>(1 + rng() % 12) * kBlock;
        const auto extent = space.Allocate(bytes);
        ASSERT_EQ(extent.has_value(), bytes <= model.LongestFree(3, 64)) << seed;
        if (!extent) continue;
        model.Take(*extent);
        live.push_back(*extent);
      } else if (!live.empty()) {
        std::swap(live[rng() % live.size()], live.back());
        model.Give(live.back());
        space.Free(live.back());
        live.pop_back();
      }
      ASSERT_EQ(space.used_bytes(), model.used_bytes()) << seed;
      if (step % 100 == 99) {  // as after a restart
        ExtentSpace again;
        for (uint32_t file = 1; file <= 3; ++file) again.AddFile(file, 64 * kBlock);
        ASSERT_TRUE(again.Adopt(live).empty()) << seed;
        ASSERT_EQ(again.free_run_count(), space.free_run_count()) << seed;
        space = std::move(again);
      }
    }
    for (const Extent& extent : live) space.Free(extent);
    EXPECT_EQ(space.free_run_count(), 3) << seed;
    EXPECT_EQ(space.EmptyFiles().size(), 3u);
  }
}

TEST(ExtentSpaceTest, AMillionExtentsAreAdoptedAndFreed) {
  constexpr int64_t kCount = 1000000;
  ExtentSpace space;
  std::vector<Extent> used;
  for (uint32_t file = 1; file <= 100; ++file) {
    space.AddFile(file, kCount / 100 * kBlock);
    for (int64_t i = 0; i < kCount / 100; ++i) used.push_back({file, i * kBlock, kBlock});
  }
  EXPECT_TRUE(space.Adopt(used).empty());
  EXPECT_EQ(space.free_run_count(), 0);
  for (size_t i = 0; i < used.size(); i += 2) space.Free(used[i]);
  EXPECT_EQ(space.free_run_count(), kCount / 2);
  EXPECT_EQ(space.Allocate(2 * kBlock), std::nullopt);
  for (size_t i = 1; i < used.size(); i += 2) space.Free(used[i]);
  EXPECT_EQ(space.free_run_count(), 100);
}

}  // namespace
}  // namespace pagoda
