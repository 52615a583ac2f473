// Goal: what layer 0 needs comes before what layer 1 needs, each with the time at which its layer
// is computed. Method: cases by hand, and a random order that must come out sorted and complete.
#include "storage/prefetch/layer_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pagoda::prefetch {
namespace {

TEST(LayerOrderTest, LayerFirstThenRootFirst) {
  const std::vector<LayerPart> parts = {{0, 0, 0}, {0, 1, 2}, {1, 0, 0}, {1, 1, 2}, {1, 2, 2}};
  const absl::Duration now = absl::Seconds(7);
  const absl::Duration layer = absl::Milliseconds(5);
  EXPECT_EQ(OrderByLayer(parts, now, layer), (std::vector<OrderedPart>{{0, 0, now},
                                                                       {1, 0, now},
                                                                       {0, 1, now + 2 * layer},
                                                                       {1, 1, now + 2 * layer},
                                                                       {1, 2, now + 2 * layer}}));
  EXPECT_TRUE(OrderByLayer({}, now, layer).empty());
}

TEST(LayerOrderTest, AnyOrderComesOutSortedAndComplete) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 rng(seed);
    std::vector<LayerPart> parts;
    for (uint32_t page = 0; page < 10; ++page) {
      for (uint32_t part = 0; part < 8; ++part) parts.push_back({page, part, part / 2 * 3});
    }
    const auto expected = OrderByLayer(parts, absl::ZeroDuration(), absl::Seconds(1));
    std::shuffle(parts.begin(), parts.end(), rng);
    ASSERT_EQ(OrderByLayer(parts, absl::ZeroDuration(), absl::Seconds(1)), expected)
        << "seed " << seed;
    ASSERT_EQ(expected.size(), parts.size());
    ASSERT_TRUE(std::is_sorted(
        expected.begin(), expected.end(),
        [](const OrderedPart& a, const OrderedPart& b) { return a.deadline < b.deadline; }));
  }
}

}  // namespace
}  // namespace pagoda::prefetch
