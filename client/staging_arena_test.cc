// Goal: ranges never overlap, and what is given back is whole again. Method: seeded histories
// against a bitmap of 64-byte units.
#include "client/staging_arena.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace pagoda::client {
namespace {

TEST(StagingArenaTest, AgreesWithABitmap) {
  constexpr int64_t kUnits = 200;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    StagingArena arena(kUnits * 64 + 63);
    std::vector<bool> used(kUnits);
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (int step = 0; step < 400; ++step) {
      const bool take = taken.empty() || random() % 5 < 3;
      if (take) {
        const int64_t bytes = 1 + random() % 1500;
        const int64_t units = (bytes + 63) / 64;
        const std::optional<int64_t> at = arena.Take(bytes);
        int64_t longest = 0;
        for (int64_t i = 0, run = 0; i < kUnits; ++i) {
          run = used[i] ? 0 : run + 1;
          longest = std::max(longest, run);
        }
        ASSERT_EQ(at.has_value(), longest >= units) << seed << " " << step;
        if (!at.has_value()) continue;
        ASSERT_EQ(*at % 64, 0);
        for (int64_t i = *at / 64; i < *at / 64 + units; ++i) {
          ASSERT_FALSE(used[i]);
          used[i] = true;
        }
        taken.push_back({*at, bytes});
      } else {
        const size_t which = random() % taken.size();
        const auto [offset, bytes] = taken[which];
        arena.Return(offset, bytes);
        for (int64_t i = offset / 64; i < offset / 64 + (bytes + 63) / 64; ++i) used[i] = false;
        taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which));
      }
      ASSERT_EQ(arena.free_bytes(), 64 * std::count(used.begin(), used.end(), false));
    }
    for (const auto& [offset, bytes] : taken) arena.Return(offset, bytes);
    EXPECT_EQ(arena.Take(kUnits * 64), 0);
  }
}

TEST(StagingArenaTest, StaysAtTheFront) {
  StagingArena arena(1 << 20);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(arena.Take(1000), 0);
    arena.Return(0, 1000);
  }
  EXPECT_EQ(arena.Take((1 << 20) + 1), std::nullopt);
}

}  // namespace
}  // namespace pagoda::client
