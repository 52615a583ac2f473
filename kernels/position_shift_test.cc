// Goal: pages computed at one position and read at another give what pages computed there would.
// Method: the identity in double; turned queries against turned keys within the bound of the
// header, every precision, on every target; and keys of one model made at both positions, which may
// differ by the rounding of bf16.
#include "kernels/position_shift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/testing/each_target.h"
#include "kernels/testing/magnitudes.h"
#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

constexpr int32_t kGroup = 3;
constexpr int32_t kPageTokens = 64;

std::vector<double> RandomRow(int32_t dim, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> row(static_cast<size_t>(dim));
  for (double& x : row) x = normal(random);
  return row;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

TEST(PositionShiftTest, TurningBackTheQueryIsTurningTheKey) {
  std::mt19937 random(1);
  for (const Rope& rope : {Rope{1e4, 64, 1}, Rope{1e6, 48, 1}, Rope{5e5, 64, 4}}) {
    for (const int64_t shift : {int64_t{1}, int64_t{-7}, int64_t{4096}, int64_t{1} << 24}) {
      const std::vector<double> q = RandomRow(64, random);
      const std::vector<double> k = RandomRow(64, random);
      std::vector<double> turned_q = q;
      std::vector<double> turned_k = k;
      TurnRef(AnglesOf(rope, -shift), turned_q.data());
      TurnRef(AnglesOf(rope, shift), turned_k.data());
      EXPECT_NEAR(Dot(turned_q, k), Dot(q, turned_k), 1e-12 * 64);
      // Turns add up, and back and forth is nothing. Angles err by 2^-53 of themselves.
      std::vector<double> at_once = k;
      TurnRef(AnglesOf(rope, shift + 100), at_once.data());
      TurnRef(AnglesOf(rope, 100), turned_k.data());
      for (int32_t c = 0; c < 64; ++c) EXPECT_NEAR(turned_k[c], at_once[c], 0x1p-26);
    }
  }
}

// Queries and outputs of one call.
struct Call {
  Call(int32_t query_count, int32_t dim, int64_t first_position, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<size_t>(query_count * (kGroup * dim + 3)));
    for (float& x : q) x = normal(random);
    out.resize(q.size());
    lse2.resize(static_cast<size_t>(query_count * kGroup));
    params.q = q.data();
    params.out = out.data();
    params.lse2 = lse2.data();
    params.q_stride = params.out_stride = kGroup * dim + 3;
    params.query_count = query_count;
    params.group_count = kGroup;
    params.head_dim = dim;
    params.page_tokens = kPageTokens;
    params.first_position = first_position;
    params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(dim));
  }
  double QueryNorm() const {
    double greatest = 0;
    for (int32_t i = 0; i < params.query_count; ++i) {
      for (int32_t g = 0; g < kGroup; ++g) {
        double norm = 0;
        for (int32_t c = 0; c < params.head_dim; ++c) {
          norm += std::pow(q[i * params.q_stride + g * params.head_dim + c], 2);
        }
        greatest = std::max(greatest, std::sqrt(norm));
      }
    }
    return greatest;
  }
  std::vector<float> q;
  std::vector<float> out;
  std::vector<float> lse2;
  AttentionParams params;
};

double BoundOf(const Call& call, const Magnitudes& m, double token_count, int32_t run_count) {
  const double norms =
      call.params.softmax_scale * std::log2(std::exp(1.0)) * call.QueryNorm() * m.k;
  double logit = (0x1p-24 * (2 * call.params.head_dim + 320) + 0x1p-22) * norms;
  double weights = 0;
  if (call.params.query_count == 1) {  // by integers, attention.h
    const double unit = hwy::SupportedTargets() & HWY_AVX3 ? 0x1p-15 : 0x1p-7;
    logit += unit / 2 * std::sqrt(call.params.head_dim) * norms;
    weights = unit * kPageTokens * m.v;
  }
  const double attention = weights + 2 * m.v * (logit + 0x1p-20 + (token_count + 64) * 0x1p-24);
  return 2 * attention + run_count * 0x1p-20 * m.v;
}

TEST(PositionShiftTest, RunsWithShiftsAreWithinTheBoundOfTurnedKeys) {
  for (const int32_t dim : {64, 80, 128}) {
    const PageShape shape{1, 1, dim, kPageTokens};
    std::vector<TestPage> pages;
    std::vector<PageTile> tiles;
    for (const Precision precision :
         {Precision::kQ8, Precision::kQ4, Precision::kRaw16, Precision::kRaw16}) {
      const auto base = static_cast<int64_t>(pages.size()) * kPageTokens;
      TestPage raw = RandomRawPage(shape, base, static_cast<uint32_t>(dim + base));
      pages.push_back(precision == Precision::kRaw16 ? std::move(raw)
                                                     : EncodedPage(raw, precision));
      tiles.push_back(pages.back().view().tile(0, 0));
    }
    tiles.back().token_count = 11;
    const absl::Span<const PageTile> all(tiles);
    const std::vector<TileRun> runs = {
        {all.subspan(0, 1), 0}, {all.subspan(1, 2), 5000}, {all.subspan(3, 1), -3}};
    const Magnitudes magnitudes = MagnitudesOf(tiles, shape);
    for (const int32_t query_count : {1, 5}) {
      SCOPED_TRACE(testing::Message() << dim << ", queries " << query_count);
      Call ref(query_count, dim, 200, 9);
      Call cpu(query_count, dim, 200, 9);
      const Rope rope{1e4, dim, 1};
      PAGODA_ASSERT_OK(ShiftedAttentionRef({ref.params, runs, rope}));
      ForEachTarget([&] {
        ShiftedAttentionScratch scratch;
        PAGODA_ASSERT_OK(ShiftedAttentionCpu({cpu.params, runs, rope}, scratch));
        const double bound = BoundOf(cpu, magnitudes, 203, 3);
        for (size_t i = 0; i < ref.out.size(); ++i) {
          ASSERT_NEAR(cpu.out[i], ref.out[i], bound) << i;
        }
        for (size_t i = 0; i < ref.lse2.size(); ++i) {
          ASSERT_NEAR(cpu.lse2[i], ref.lse2[i], bound / magnitudes.v + 1e-5) << i;
        }
      });
    }
  }
}

// A run alone, without a shift: attention.h, bit for bit.
TEST(PositionShiftTest, NoShiftChangesNothing) {
  const PageShape shape{1, 1, 64, kPageTokens};
  const TestPage page = RandomRawPage(shape, 0, 4);
  const std::vector<PageTile> tiles = {page.view().tile(0, 0)};
  Call shifted(1, 64, 64, 5);
  Call plain(1, 64, 64, 5);
  ShiftedAttentionScratch scratch;
  const TileRun run = {tiles, 0};
  PAGODA_ASSERT_OK(ShiftedAttentionCpu(
      {shifted.params, absl::MakeConstSpan(&run, 1), Rope{1e4, 64, 1}}, scratch));
  plain.params.pages = tiles;
  PAGODA_ASSERT_OK(AttentionCpu(plain.params, scratch.attention));
  EXPECT_EQ(shifted.out, plain.out);
  EXPECT_EQ(shifted.lse2, plain.lse2);
}

TEST(PositionShiftTest, KeysMadeElsewhereDifferByTheirRoundingAlone) {
  constexpr int32_t kDim = 64;
  const PageShape shape{1, 1, kDim, kPageTokens};
  const Rope rope{1e4, kDim, 1};
  for (const int64_t shift : {1, 64, 8192}) {
    SCOPED_TRACE(shift);
    constexpr int64_t kMadeAt = 128;
    const int64_t read_at = kMadeAt + shift;
    TestPage made = EmptyRawPage(shape, kMadeAt);
    TestPage there = EmptyRawPage(shape, read_at);
    std::mt19937 random(static_cast<uint32_t>(shift));
    for (int32_t t = 0; t < kPageTokens; ++t) {
      const std::vector<double> key = RandomRow(kDim, random);
      const std::vector<double> value = RandomRow(kDim, random);
      for (auto& [page, base] : {std::pair(&made, kMadeAt), std::pair(&there, read_at)}) {
        std::vector<double> k = key;
        TurnRef(AnglesOf(rope, base + t), k.data());
        const auto [k_rows, v_rows] = RawRows(*page, 0, 0);
        for (int32_t c = 0; c < kDim; ++c) {
          k_rows[t * kDim + c] = Bf16FromFloat(static_cast<float>(k[c]));
          v_rows[t * kDim + c] = Bf16FromFloat(static_cast<float>(value[c]));
        }
      }
    }
    std::vector<PageTile> moved = {made.view().tile(0, 0)};
    moved[0].base_position = read_at;
    const std::vector<PageTile> native = {there.view().tile(0, 0)};
    const TileRun run = {moved, shift};
    Call by_shift(2, kDim, read_at + 70, 6);
    Call by_key(2, kDim, read_at + 70, 6);
    by_key.params.pages = native;
    PAGODA_ASSERT_OK(AttentionRef(by_key.params));
    PAGODA_ASSERT_OK(ShiftedAttentionRef({by_shift.params, absl::MakeConstSpan(&run, 1), rope}));
    const Magnitudes m = MagnitudesOf(native, shape);
    const double logit =
        0x1p-8 * by_key.params.softmax_scale * std::log2(std::exp(1.0)) * by_key.QueryNorm() * m.k;
    for (size_t i = 0; i < by_key.out.size(); ++i) {
      ASSERT_NEAR(by_shift.out[i], by_key.out[i], 2 * m.v * logit) << i;
    }
    ShiftedAttentionScratch scratch;
    PAGODA_ASSERT_OK(
        ShiftedAttentionCpu({by_shift.params, absl::MakeConstSpan(&run, 1), rope}, scratch));
    for (size_t i = 0; i < by_key.out.size(); ++i) {
      ASSERT_NEAR(by_shift.out[i], by_key.out[i], 2 * m.v * logit) << i;
    }
  }
}

TEST(PositionShiftTest, WrongCallsAreRefused) {
  const PageShape shape{1, 1, 64, kPageTokens};
  const TestPage page = RandomRawPage(shape, 0, 4);
  const std::vector<PageTile> tiles = {page.view().tile(0, 0)};
  Call call(1, 64, 64, 5);
  const TileRun good_run = {tiles, 3};
  const TileRun far_run = {tiles, (int64_t{1} << 24) + 1};
  const ShiftedAttentionParams good = {call.params, absl::MakeConstSpan(&good_run, 1),
                                       Rope{1e4, 64, 1}};
  ShiftedAttentionScratch scratch;
  PAGODA_EXPECT_OK(ShiftedAttentionCpu(good, scratch));
  const std::vector<std::function<void(ShiftedAttentionParams&)>> breaks = {
      [](ShiftedAttentionParams& p) { p.runs = {}; },
      [&](ShiftedAttentionParams& p) { p.attention.pages = tiles; },
      [&](ShiftedAttentionParams& p) { p.runs = absl::MakeConstSpan(&far_run, 1); },
      [](ShiftedAttentionParams& p) { p.attention.group_count = 0; },
      [](ShiftedAttentionParams& p) { p.rope.rope_dims = 66; },
      [](ShiftedAttentionParams& p) { p.rope.rope_dims = 3; },
      [](ShiftedAttentionParams& p) { p.rope.theta = 0; },
      [](ShiftedAttentionParams& p) { p.rope.linear_factor = 0; },
  };
  for (size_t i = 0; i < breaks.size(); ++i) {
    ShiftedAttentionParams p = good;
    breaks[i](p);
    EXPECT_THAT(ShiftedAttentionCpu(p, scratch), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
    EXPECT_THAT(ShiftedAttentionRef(p), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
  }
}

}  // namespace
}  // namespace pagoda::kernels
