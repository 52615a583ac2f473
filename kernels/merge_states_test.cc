// Goal: partial attention results merge to the result over all tokens, in any order. Method: the
// twins against each other and against attention over the whole list; empty states on either side.
#include "kernels/merge_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/testing/each_target.h"
#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct State {
  std::vector<float> o;
  std::vector<float> lse2;
  AttentionState view() { return {o.data(), lse2.data()}; }
};

State RandomState(int64_t row_count, int32_t head_dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  State state;
  for (int64_t i = 0; i < row_count * head_dim; ++i) state.o.push_back(normal(random));
  for (int64_t i = 0; i < row_count; ++i) state.lse2.push_back(5 * normal(random));
  return state;
}

State Merged(State a, State b, int32_t head_dim, bool ref = false) {
  const auto rows = static_cast<int64_t>(a.lse2.size());
  (ref ? MergeStatesRef : MergeStatesCpu)(a.view(), b.view(), rows, head_dim);
  return a;
}

void ExpectNear(const State& a, const State& b, double tolerance) {
  for (size_t i = 0; i < a.o.size(); ++i) ASSERT_NEAR(a.o[i], b.o[i], 5 * tolerance);
  for (size_t i = 0; i < a.lse2.size(); ++i) {
    if (a.lse2[i] == b.lse2[i]) continue;  // both empty
    ASSERT_NEAR(a.lse2[i], b.lse2[i], tolerance * std::max(1.0f, std::fabs(b.lse2[i])));
  }
}

TEST(MergeStatesTest, TwinsAgreeWithinTheBound) {
  for (const int32_t head_dim : {16, 24, 64, 80, 256}) {
    const State a = RandomState(33, head_dim, 1);
    const State b = RandomState(33, head_dim, 2);
    const State ref = Merged(a, b, head_dim, /*ref=*/true);
    ForEachTarget([&] { ExpectNear(Merged(a, b, head_dim), ref, 0x1p-20); });
  }
}

TEST(MergeStatesTest, OrderAndGroupingDoNotMatter) {
  const State a = RandomState(9, 64, 1);
  const State b = RandomState(9, 64, 2);
  const State c = RandomState(9, 64, 3);
  ForEachTarget([&] {
    const State left = Merged(Merged(a, b, 64), c, 64);
    ExpectNear(left, Merged(a, Merged(b, c, 64), 64), 0x1p-19);
    ExpectNear(left, Merged(Merged(c, b, 64), a, 64), 0x1p-19);
  });
}

TEST(MergeStatesTest, EmptyChangesNothing) {
  const State a = RandomState(3, 64, 1);
  State empty;
  empty.o.assign(3 * 64, 0.0f);
  empty.lse2.assign(3, -kInfinity);
  for (const bool ref : {false, true}) {
    EXPECT_EQ(Merged(a, empty, 64, ref).o, a.o);
    EXPECT_EQ(Merged(a, empty, 64, ref).lse2, a.lse2);
    EXPECT_EQ(Merged(empty, a, 64, ref).o, a.o);
    EXPECT_EQ(Merged(empty, a, 64, ref).lse2, a.lse2);
    EXPECT_EQ(Merged(empty, empty, 64, ref).o, empty.o);
    EXPECT_EQ(Merged(empty, empty, 64, ref).lse2, empty.lse2);
  }
}

TEST(MergeStatesTest, FarApartStatesKeepTheGreater) {
  State a = RandomState(1, 64, 1);
  State b = RandomState(1, 64, 2);
  a.lse2[0] = 1000;
  b.lse2[0] = -1000;
  EXPECT_EQ(Merged(a, b, 64).o, a.o);
  EXPECT_EQ(Merged(b, a, 64).o, a.o);
  EXPECT_EQ(Merged(b, a, 64).lse2[0], 1000.0f);
}

// Attention over parts of a sequence, merged, is attention over the sequence.
TEST(MergeStatesTest, PartsOfASequenceMergeToTheWhole) {
  const PageShape shape{1, 1, 64, 64};
  std::vector<TestPage> pages;
  std::vector<PageTile> tiles;
  for (int i = 0; i < 5; ++i) {
    pages.push_back(RandomRawPage(shape, i * 64, static_cast<uint32_t>(i)));
    if (i < 3) pages.back() = EncodedPage(pages.back(), i == 1 ? Precision::kQ4 : Precision::kQ8);
  }
  for (const TestPage& page : pages) tiles.push_back(page.view().tile(0, 0));
  const State q = RandomState(3, 64, 77);
  const auto attend = [&](size_t begin, size_t count) {
    State state = RandomState(3, 64, 0);
    AttentionParams p;
    p.q = q.o.data();
    p.q_stride = p.out_stride = 3 * 64;
    p.out = state.o.data();
    p.lse2 = state.lse2.data();
    p.query_count = 1;
    p.group_count = 3;
    p.head_dim = 64;
    p.page_tokens = 64;
    p.first_position = 1000;
    p.softmax_scale = 0.125f;
    p.pages = absl::MakeConstSpan(tiles).subspan(begin, count);
    AttentionScratch scratch;
    PAGODA_EXPECT_OK(AttentionCpu(p, scratch));
    return state;
  };
  ForEachTarget([&] {
    const State whole = attend(0, 5);
    ExpectNear(Merged(attend(0, 2), attend(2, 3), 64), whole, 1e-5);
    ExpectNear(Merged(attend(4, 1), Merged(attend(1, 3), attend(0, 1), 64), 64), whole, 1e-5);
  });
}

}  // namespace
}  // namespace pagoda::kernels
