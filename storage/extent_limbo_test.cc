// Goal: an extent comes back only when its record's change is flushed and every reader that could
// have seen that record has ended. Method: each order of the three events, then seeded runs.
#include "storage/extent_limbo.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace pagoda {
namespace {

constexpr Extent kA{1, 0, kExtentAlignBytes};
constexpr Extent kB{1, kExtentAlignBytes, kExtentAlignBytes};

TEST(ExtentLimboTest, WaitsForTheFlushThatCoversIt) {
  ExtentLimbo limbo;
  const auto early = limbo.MarkFlush();
  limbo.Retire(kA);
  EXPECT_TRUE(limbo.wants_flush());
  limbo.Flushed(early);
  EXPECT_TRUE(limbo.TakeReusable().empty());
  const auto mark = limbo.MarkFlush();
  limbo.Retire(kB);  // while the flush runs
  limbo.Flushed(mark);
  EXPECT_EQ(limbo.TakeReusable(), std::vector<Extent>{kA});
  EXPECT_EQ(limbo.waiting_bytes(), kB.bytes);
  EXPECT_TRUE(limbo.wants_flush());
}

TEST(ExtentLimboTest, WaitsForReadersThatBeganBeforeAndForNoOthers) {
  ExtentLimbo limbo;
  const auto before = limbo.BeginRead();
  limbo.Retire(kA);
  const auto after = limbo.BeginRead();
  limbo.Flushed(limbo.MarkFlush());
  EXPECT_FALSE(limbo.wants_flush());
  EXPECT_TRUE(limbo.TakeReusable().empty());
  limbo.EndRead(before);
  EXPECT_EQ(limbo.TakeReusable(), std::vector<Extent>{kA});
  limbo.EndRead(after);
  EXPECT_EQ(limbo.waiting_count(), 0);
}

TEST(ExtentLimboTest, SeededRunsNeverGiveBackTooEarlyNorKeepForever) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 rng(seed);
    ExtentLimbo limbo;
    struct State {
      bool flushed = false;
      std::vector<int> readers;
    };
    std::map<int64_t, State> waiting;  // by offset
    std::map<int, ExtentLimbo::Epoch> readers;
    int next_reader = 0;
    int64_t next_offset = 0;
    for (int step = 0; step < 400; ++step) {
      switch (rng() % 5) {
        case 0:
          readers[next_reader++] = limbo.BeginRead();
          break;
        case 1:
          if (readers.empty()) break;
          limbo.EndRead(readers.begin()->second);
          for (auto& [offset, state] : waiting) std::erase(state.readers, readers.begin()->first);
          readers.erase(readers.begin());
          break;
        case 2:
          limbo.Flushed(limbo.MarkFlush());
          for (auto& [offset, state] : waiting) state.flushed = true;
          break;
        default:
          limbo.Retire({1, next_offset, kExtentAlignBytes});
          for (const auto& [reader, epoch] : readers) {
            waiting[next_offset].readers.push_back(reader);
          }
          waiting[next_offset].flushed = false;
          next_offset += kExtentAlignBytes;
      }
      for (const Extent& extent : limbo.TakeReusable()) {
        const State& state = waiting.at(extent.offset);
        ASSERT_TRUE(state.flushed && state.readers.empty()) << seed;
        waiting.erase(extent.offset);
      }
    }
    for (const auto& [reader, epoch] : readers) limbo.EndRead(epoch);
    limbo.Flushed(limbo.MarkFlush());
    EXPECT_EQ(limbo.TakeReusable().size(), waiting.size()) << seed;
    EXPECT_EQ(limbo.waiting_bytes(), 0);
  }
}

}  // namespace
}  // namespace pagoda
