// Goal: habits are predicted, accidents are not, and memory is bounded. Method: deterministic
// scans, mixtures of known shares, and a flood of pages seen once.
#include "storage/prefetch/successor_table.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace pagoda::prefetch {
namespace {

std::vector<PageId> Pages(const std::vector<SuccessorTable::Prediction>& predictions) {
  std::vector<PageId> pages;
  for (const auto& prediction : predictions) pages.push_back(prediction.page);
  return pages;
}

TEST(SuccessorTableTest, AScanIsPredictedAfterItsSecondRound) {
  SuccessorTable table({});
  constexpr PageId kPages = 50;
  int covered = 0;
  for (int round = 0; round < 4; ++round) {
    for (PageId page = 1; page <= kPages; ++page) {
      const PageId next = page % kPages + 1;
      const std::vector<PageId> predicted = Pages(table.Predict(page));
      if (round >= 2 && !predicted.empty() && predicted[0] == next) ++covered;
      table.Learn(page, next);
    }
  }
  EXPECT_EQ(covered, 2 * kPages);  // coverage 1 after warm-up
  EXPECT_EQ(Pages(table.Predict(1)), (std::vector<PageId>{2, 3, 4, 5}));
  EXPECT_TRUE(table.Predict(999).empty());
}

TEST(SuccessorTableTest, OnceIsNoHabitAndHalfIs) {
  SuccessorTable table({});
  table.Learn(1, 2);
  EXPECT_TRUE(table.Predict(1).empty());
  table.Learn(1, 3);
  EXPECT_EQ(Pages(table.Predict(1)), (std::vector<PageId>{2, 3}));  // two of a half each
  table.Learn(1, 4);
  EXPECT_TRUE(table.Predict(1).empty());  // thirds
  for (int i = 0; i < 10; ++i) table.Learn(1, 3);
  EXPECT_EQ(Pages(table.Predict(1)), (std::vector<PageId>{3}));
}

TEST(SuccessorTableTest, ConfidenceIsThatOfTheWholePath) {
  SuccessorTable table({});
  for (int i = 0; i < 8; ++i) {
    table.Learn(1, i < 6 ? 2 : 90);
    table.Learn(2, i < 6 ? 3 : 91);
    table.Learn(3, i < 6 ? 4 : 92);
  }
  const auto predicted = table.Predict(1);
  ASSERT_EQ(Pages(predicted), (std::vector<PageId>{2, 3}));  // 0.75, 0.5625; then 0.42
  EXPECT_DOUBLE_EQ(predicted[0].confidence, 0.75);
  EXPECT_DOUBLE_EQ(predicted[1].confidence, 0.5625);
}

TEST(SuccessorTableTest, HabitsChange) {
  SuccessorTable table({});
  for (int i = 0; i < 1000; ++i) table.Learn(1, 2);
  for (int i = 0; i < 100; ++i) table.Learn(1, 3);
  EXPECT_EQ(Pages(table.Predict(1)), (std::vector<PageId>{3}));
}

TEST(SuccessorTableTest, AFloodNeitherGrowsItNorPushesOutAHabit) {
  SuccessorTable::Options options;
  options.pages_max = 100;
  SuccessorTable table(options);
  std::mt19937 rng(1);
  for (PageId stranger = 1000; stranger < 20000; ++stranger) {
    table.Learn(1, rng() % 4 == 0 ? stranger : 2);
    table.Learn(stranger, stranger + 1);
    ASSERT_LE(table.row_count(), 100);
  }
  EXPECT_EQ(Pages(table.Predict(1)), (std::vector<PageId>{2}));
  EXPECT_GE(table.ConfidenceOf(1, 2), 0.6);
}

TEST(SuccessorTableTest, APageIsNotItsOwnSuccessorAndCirclesEnd) {
  SuccessorTable table({});
  for (int i = 0; i < 4; ++i) {
    table.Learn(1, 1);
    table.Learn(1, 2);
    table.Learn(2, 1);
  }
  EXPECT_EQ(Pages(table.Predict(1)), (std::vector<PageId>{2}));
}

}  // namespace
}  // namespace pagoda::prefetch
