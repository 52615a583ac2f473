// Goal: attention over mixed pages is that of the double reference within the header's bound, on
// every target and shape, and a row's bits never depend on its neighbours. Method: random pages of
// all precisions, ragged ends, causal cuts, sink rows; bitwise comparison of calls with 1, 7 and 64
// rows.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/hadamard.h"
#include "kernels/testing/each_target.h"
#include "kernels/testing/magnitudes.h"
#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

struct Case {
  int32_t head_dim;
  int32_t page_tokens;
  int32_t group_count;
  std::vector<Precision> pages;  // kNone leaves a gap
  int32_t last_tokens;           // valid in the last page, when raw16
};

// A sequence's pages and the queries that follow it; owns all memory.
struct Sequence {
  explicit Sequence(const Case& c, uint32_t seed) : shape{1, 1, c.head_dim, c.page_tokens} {
    for (size_t i = 0; i < c.pages.size(); ++i) {
      if (c.pages[i] == Precision::kNone) continue;
      const int64_t base = static_cast<int64_t>(i) * c.page_tokens;
      TestPage raw = RandomRawPage(shape, base, seed + static_cast<uint32_t>(i));
      pages.push_back(c.pages[i] == Precision::kRaw16 ? std::move(raw)
                                                      : EncodedPage(raw, c.pages[i]));
    }
    for (const TestPage& page : pages) tiles.push_back(page.view().tile(0, 0));
    if (!tiles.empty() && tiles.back().precision == Precision::kRaw16) {
      tiles.back().token_count = c.last_tokens;
    }
    for (const PageTile& tile : tiles) token_count += tile.token_count;
    magnitudes = MagnitudesOf(tiles, shape);
  }

  PageShape shape;
  std::vector<TestPage> pages;
  std::vector<PageTile> tiles;
  int64_t token_count = 0;
  Magnitudes magnitudes;
};

struct Output {
  std::vector<float> out;
  std::vector<float> lse2;
};

struct Queries {
  Queries(int32_t query_count, int32_t group_count, int32_t head_dim, uint32_t seed)
      : count(query_count), row_floats(group_count * head_dim), stride(row_floats + 3) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<size_t>(query_count * stride));
    for (float& x : q) x = 1.5f * normal(random);
  }
  int32_t count;
  int64_t row_floats;
  int64_t stride;
  std::vector<float> q;
};

AttentionParams ParamsOf(const Sequence& s, const Queries& q, int32_t group_count,
                         int64_t first_position) {
  AttentionParams p;
  p.q = q.q.data();
  p.q_stride = q.stride;
  p.query_count = q.count;
  p.group_count = group_count;
  p.head_dim = s.shape.head_dim;
  p.page_tokens = s.shape.page_tokens;
  p.first_position = first_position;
  p.softmax_scale = 1.0f / std::sqrt(static_cast<float>(s.shape.head_dim));
  p.pages = s.tiles;
  return p;
}

enum class Twin { kRef, kCpu };

Output Attend(AttentionParams p, Twin twin) {
  Output output;
  p.out_stride = p.group_count * p.head_dim;
  output.out.assign(static_cast<size_t>(p.query_count * p.out_stride), -7.0f);
  output.lse2.assign(static_cast<size_t>(p.query_count * p.group_count), -7.0f);
  p.out = output.out.data();
  p.lse2 = output.lse2.data();
  AttentionScratch scratch;
  PAGODA_EXPECT_OK(twin == Twin::kRef ? AttentionRef(p) : AttentionCpu(p, scratch));
  return output;
}

double NormMax(const Queries& q, int32_t head_dim) {
  double greatest = 0;
  for (int32_t i = 0; i < q.count; ++i) {
    for (int64_t h = 0; h < q.row_floats; h += head_dim) {
      double norm = 0;
      for (int32_t c = 0; c < head_dim; ++c) norm += std::pow(q.q[i * q.stride + h + c], 2);
      greatest = std::max(greatest, std::sqrt(norm));
    }
  }
  return greatest;
}

// Largest share of the bound that was used, for out and lse2.
double ExpectWithinBound(const Sequence& s, const Queries& q, const AttentionParams& p,
                         const Output& cpu, const Output& ref) {
  const Magnitudes& m = s.magnitudes;
  const double scale = p.softmax_scale * std::log2(std::exp(1.0));
  const double norms = scale * NormMax(q, p.head_dim) * m.k;
  double logit = 0x1p-24 * (2 * p.head_dim + 320) * norms;
  const double n = static_cast<double>(s.token_count);
  double bound = 0;
  if (p.query_count == 1 && !p.float_codes) {
    const double unit = hwy::SupportedTargets() & HWY_AVX3 ? 0x1p-15 : 0x1p-7;
    logit += unit / 2 * std::sqrt(p.head_dim) * norms;
    bound += unit * p.page_tokens * m.v;
  }
  bound += 2 * m.v * (logit + 0x1p-20 + (n + 64) * 0x1p-24);
  double used = 0;
  for (size_t i = 0; i < cpu.out.size(); ++i) {
    EXPECT_LE(std::fabs(cpu.out[i] - ref.out[i]), bound) << "element " << i;
    if (bound > 0) used = std::max(used, std::fabs(cpu.out[i] - ref.out[i]) / bound);
  }
  for (size_t i = 0; i < cpu.lse2.size(); ++i) {
    if (std::isinf(ref.lse2[i])) {
      EXPECT_EQ(cpu.lse2[i], ref.lse2[i]);
      continue;
    }
    const double lse_bound = logit + 0x1p-20 * (1 + std::fabs(ref.lse2[i])) + n * 0x1p-24;
    EXPECT_LE(std::fabs(cpu.lse2[i] - ref.lse2[i]), lse_bound) << "row " << i;
    used = std::max(used, std::fabs(cpu.lse2[i] - ref.lse2[i]) / lse_bound);
  }
  return used;
}

constexpr Precision kRaw = Precision::kRaw16;
constexpr Precision kQ8 = Precision::kQ8;
constexpr Precision kQ4 = Precision::kQ4;
constexpr Precision kGap = Precision::kNone;

const std::vector<Case> kCases = {
    {64, 64, 1, {kRaw}, 64},
    {64, 64, 3, {kQ8, kQ4, kRaw}, 5},
    {64, 64, 3, {kQ4, kQ4, kRaw, kRaw}, 1},
    {64, 64, 4, {kQ8, kGap, kQ8}, 0},
    {64, 64, 8, {kQ4, kQ8, kRaw}, 63},
    {64, 32, 9, {kQ4, kQ8, kRaw}, 32},
    {128, 64, 1, {kQ8, kRaw}, 17},
    {128, 64, 4, {kQ4, kQ8, kRaw}, 33},
    {128, 128, 8, {kQ8, kRaw}, 127},
    {80, 32, 2, {kQ4, kQ8, kRaw}, 31},
    {96, 64, 5, {kQ8, kQ4, kRaw}, 2},
    {256, 64, 6, {kQ4, kQ8, kRaw}, 9},
    {128, 256, 1, {kQ8, kRaw}, 255},
    {16, 32, 7, {kQ4, kQ8, kRaw}, 6},
    {24, 32, 3, {kQ4, kQ8, kRaw}, 8},
    {120, 32, 2, {kQ4, kQ8, kRaw}, 7},
    {248, 32, 1, {kQ4, kQ8, kRaw}, 16},
};

TEST(AttentionTest, EveryTargetIsWithinTheBoundOfTheReference) {
  double used[2] = {};  // by integers, by floats
  for (size_t i = 0; i < kCases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const Case& c = kCases[i];
    const Sequence s(c, static_cast<uint32_t>(100 * i));
    const int64_t length = static_cast<int64_t>(c.pages.size()) * c.page_tokens;
    // Decode at the end; rows in the middle of the sequence, causal; rows past the end.
    const std::pair<int32_t, int64_t> calls[] = {
        {1, length}, {1, length / 2}, {13, length / 3}, {3, length - 2}};
    for (const auto& [query_count, first_position] : calls) {
      SCOPED_TRACE("queries " + std::to_string(query_count));
      const Queries q(query_count, c.group_count, c.head_dim, static_cast<uint32_t>(i));
      AttentionParams p = ParamsOf(s, q, c.group_count, first_position);
      const Output ref = Attend(p, Twin::kRef);
      for (const bool floats : {true, false}) {
        p.float_codes = floats;
        ForEachTarget([&] {
          used[floats] =
              std::max(used[floats], ExpectWithinBound(s, q, p, Attend(p, Twin::kCpu), ref));
        });
      }
    }
  }
  RecordProperty("bound_used_permille", static_cast<int>(used[true] * 1000));
  RecordProperty("bound_used_permille_integers", static_cast<int>(used[false] * 1000));
  // Worst cases are rare: a result that comes near one has a fault.
  EXPECT_LT(used[true], 0.01);
  EXPECT_LT(used[false], 0.05);
}

// Sanitizers look at the same code at a few of them.
std::vector<int32_t> Lengths() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return {1, 17, 65};
#else
  return {1, 15, 16, 17, 63, 64, 65, 1000};
#endif
}

// Every precision, head size, group and ragged length by itself, decoded at the end and in the last
// rows of a prefill. Whole pages are encoded, the rest is raw16, as in a sequence.
TEST(AttentionTest, EveryShapeIsWithinTheBoundOfTheReference) {
  constexpr int32_t kTokens = 64;
  for (const Precision precision : {kRaw, kQ8, kQ4}) {
    for (const int32_t head_dim : {64, 80, 96, 128, 256}) {
      for (const int32_t length : Lengths()) {
        Case c{head_dim, kTokens, 0, {}, length % kTokens == 0 ? kTokens : length % kTokens};
        for (int32_t at = 0; at < length; at += kTokens) {
          c.pages.push_back(at + kTokens <= length ? precision : kRaw);
        }
        const Sequence s(c, static_cast<uint32_t>(head_dim + length));
        for (const int32_t group_count : {1, 3, 4, 8}) {
          SCOPED_TRACE(absl::StrCat(PrecisionName(precision), ", head_dim ", head_dim, ", length ",
                                    length, ", heads ", group_count));
          for (const int32_t query_count : {1, 2}) {
            const Queries q(query_count, group_count, head_dim, 7);
            const AttentionParams p =
                ParamsOf(s, q, group_count, std::max(0, length - query_count));
            const Output ref = Attend(p, Twin::kRef);
            ForEachTarget([&] { ExpectWithinBound(s, q, p, Attend(p, Twin::kCpu), ref); });
          }
        }
      }
    }
  }
}

// A peak and a long tail of small weights: what integers round away one by one must not be lost.
TEST(AttentionTest, PeakedWeightsKeepTheirTails) {
  for (const int32_t page_tokens : {64, 256}) {
    const Case c{64, page_tokens, 3, {kQ4, kQ4, kRaw}, 5};
    const Sequence s(c, 11);
    for (const float sharpness : {0.25f, 1.0f, 4.0f, 16.0f}) {
      SCOPED_TRACE(sharpness);
      Queries q(1, 3, 64, 12);
      for (float& x : q.q) x *= sharpness;
      const AttentionParams p = ParamsOf(s, q, 3, s.token_count);
      const Output ref = Attend(p, Twin::kRef);
      ForEachTarget([&] {
        const Output cpu = Attend(p, Twin::kCpu);
        // One byte of a sharp query moves its logits; far less than four bits of a key do.
        const bool one_byte = hwy::SupportedTargets() == HWY_AVX2 && sharpness > 1;
        const double share = one_byte ? 0.15 : 0.02;
        for (size_t i = 0; i < cpu.out.size(); ++i) {
          EXPECT_NEAR(cpu.out[i], ref.out[i], share * s.magnitudes.v) << i;
        }
      });
    }
  }
}

// With one value of V everywhere, softmax weights must sum to one exactly enough.
TEST(AttentionTest, LargeLogitsStayFinite) {
  const Case c{64, 64, 3, {kQ8, kQ4, kRaw}, 40};
  const Sequence s(c, 5);
  Queries q(9, 3, 64, 6);
  for (float& x : q.q) x *= 300;
  const AttentionParams p = ParamsOf(s, q, 3, 120);
  const Output ref = Attend(p, Twin::kRef);
  ForEachTarget([&] {
    const Output cpu = Attend(p, Twin::kCpu);
    for (const float x : cpu.out) ASSERT_TRUE(std::isfinite(x));
    ExpectWithinBound(s, q, p, cpu, ref);
  });
}

TEST(AttentionTest, RowsDoNotDependOnTheOtherRowsOfTheCall) {
  for (const Case& c : {kCases[1], kCases[7], kCases[9]}) {
    const Sequence s(c, 40);
    const int32_t query_count = 64;
    const int64_t first_position = c.page_tokens + 3;
    const Queries q(query_count, c.group_count, c.head_dim, 41);
    const AttentionParams p = ParamsOf(s, q, c.group_count, first_position);
    ForEachTarget([&] {
      const Output all = Attend(p, Twin::kCpu);
      for (const int32_t part : {2, 7, 33}) {
        for (int32_t begin = 0; begin + part <= query_count; begin += 2 * part) {
          AttentionParams few = p;
          few.q = p.q + begin * p.q_stride;
          few.query_count = part;
          few.first_position = first_position + begin;
          const Output some = Attend(few, Twin::kCpu);
          ASSERT_EQ(std::memcmp(some.out.data(), &all.out[begin * q.row_floats],
                                some.out.size() * sizeof(float)),
                    0)
              << part << " rows from " << begin;
          ASSERT_EQ(std::memcmp(some.lse2.data(), &all.lse2[begin * c.group_count],
                                some.lse2.size() * sizeof(float)),
                    0);
        }
      }
    });
  }
}

TEST(AttentionTest, DecodedHeadsDoNotDependOnTheOtherHeads) {
  const Case c{64, 64, 9, {kQ8, kQ4, kRaw}, 50};
  const Sequence s(c, 60);
  const Queries q(1, 9, 64, 61);
  const AttentionParams p = ParamsOf(s, q, 9, 500);
  ForEachTarget([&] {
    const Output all = Attend(p, Twin::kCpu);
    for (int32_t head = 0; head < 9; ++head) {
      AttentionParams one = p;
      one.q = p.q + head * 64;
      one.group_count = 1;
      const Output alone = Attend(one, Twin::kCpu);
      ASSERT_EQ(std::memcmp(alone.out.data(), &all.out[head * 64], 64 * sizeof(float)), 0) << head;
      ASSERT_EQ(alone.lse2[0], all.lse2[head]);
    }
  });
}

TEST(AttentionTest, RowsThatSeeNothingAreEmptyStates) {
  const Case c{64, 64, 2, {kGap, kGap, kQ8, kRaw}, 64};
  const Sequence s(c, 70);
  const Queries q(6, 2, 64, 71);
  const AttentionParams p = ParamsOf(s, q, 2, 125);  // positions 125 to 130; tokens start at 128
  ForEachTarget([&] {
    const Output cpu = Attend(p, Twin::kCpu);
    for (int32_t row = 0; row < 6 * 2; ++row) {
      const bool empty = row / 2 < 3;
      EXPECT_EQ(std::isinf(cpu.lse2[row]), empty) << row;
      for (int32_t i = 0; i < 64; ++i) {
        EXPECT_TRUE(!empty || cpu.out[row * 64 + i] == 0.0f);
      }
    }
    AttentionParams none = p;
    none.pages = {};
    EXPECT_TRUE(std::isinf(Attend(none, Twin::kCpu).lse2[3]));
    none.query_count = 1;
    EXPECT_TRUE(std::isinf(Attend(none, Twin::kCpu).lse2[1]));
    EXPECT_EQ(Attend(none, Twin::kCpu).out[5], 0.0f);
  });
}

TEST(AttentionTest, SinkRowsReplaceTheCodes) {
  const Case c{64, 64, 1, {kQ4}, 0};
  Sequence s(c, 80);
  ASSERT_EQ(s.tiles[0].sink_count, kSinkTokens);
  const Queries q(1, 1, 64, 81);
  // Only the sinks are seen: the result is that of the raw rows, not of their codes.
  PageTile raw;
  raw.precision = kRaw;
  raw.token_count = 3;
  raw.raw_k = s.tiles[0].sink_k;
  raw.raw_v = s.tiles[0].sink_v;
  AttentionParams p = ParamsOf(s, q, 1, 2);
  AttentionParams exact = p;
  exact.pages = absl::MakeConstSpan(&raw, 1);
  ForEachTarget([&] {
    EXPECT_EQ(Attend(p, Twin::kCpu).out, Attend(exact, Twin::kCpu).out);
    Queries two(2, 1, 64, 82);
    AttentionParams prefill = ParamsOf(s, two, 1, 1);
    AttentionParams prefill_exact = prefill;
    prefill_exact.pages = exact.pages;
    EXPECT_EQ(Attend(prefill, Twin::kCpu).out, Attend(prefill_exact, Twin::kCpu).out);
  });
}

TEST(AttentionTest, LoOfOneTensorAloneIsUsed) {
  const Case c{64, 64, 3, {kQ8, kRaw}, 20};
  Sequence s(c, 90);
  s.tiles[0].precision = kQ4;
  s.tiles[0].v_lo = nullptr;
  s.tiles[0].v_lo_params = nullptr;
  s.magnitudes = MagnitudesOf(s.tiles, s.shape);
  const Queries q(4, 3, 64, 91);
  const AttentionParams p = ParamsOf(s, q, 3, 80);
  const Output ref = Attend(p, Twin::kRef);
  AttentionParams one = p;
  one.query_count = 1;
  const Output ref_one = Attend(one, Twin::kRef);
  ForEachTarget([&] {
    ExpectWithinBound(s, q, p, Attend(p, Twin::kCpu), ref);
    ExpectWithinBound(s, q, one, Attend(one, Twin::kCpu), ref_one);
  });
}

// A tail of exactly token_count rows at the end of its memory: nothing past it is read.
TEST(AttentionTest, RowsPastTheTokenCountAreNeverRead) {
  for (const int32_t tokens : {1, 2, 3, 5, 31, 33}) {
    const int64_t words = int64_t{tokens} * 64;
    std::vector<uint16_t> k(words), v(words);
    for (int64_t i = 0; i < words; ++i) {
      k[i] = Bf16FromFloat(0.01f * static_cast<float>(i % 37));
      v[i] = Bf16FromFloat(0.02f * static_cast<float>(i % 29));
    }
    PageTile tile;
    tile.precision = kRaw;
    tile.token_count = tokens;
    tile.raw_k = k.data();
    tile.raw_v = v.data();
    Sequence s({64, 64, 3, {}, 0}, 0);
    s.tiles = {tile};
    s.token_count = tokens;
    s.magnitudes = MagnitudesOf(s.tiles, s.shape);
    for (const int32_t query_count : {1, 5}) {
      const Queries q(query_count, 3, 64, 95);
      const AttentionParams p = ParamsOf(s, q, 3, 62);
      const Output ref = Attend(p, Twin::kRef);
      ForEachTarget([&] { ExpectWithinBound(s, q, p, Attend(p, Twin::kCpu), ref); });
    }
  }
}

TEST(AttentionTest, WrongCallsAreRefused) {
  const Case c{64, 64, 2, {kQ8, kRaw}, 20};
  Sequence s(c, 99);
  const Queries q(2, 2, 64, 98);
  std::vector<float> out(2 * 2 * 64);
  AttentionParams good = ParamsOf(s, q, 2, 80);
  good.out = out.data();
  good.out_stride = 128;
  AttentionScratch scratch;
  PAGODA_EXPECT_OK(AttentionCpu(good, scratch));  // lse2 may be null
  PAGODA_EXPECT_OK(AttentionRef(good));
  std::vector<PageTile> swapped = {s.tiles[1], s.tiles[0]};
  std::vector<PageTile> broken = s.tiles;
  broken[0].k_hi = nullptr;
  std::vector<PageTile> far = s.tiles;
  far[1].base_position = (int64_t{1} << 40) + 1;
  const std::vector<std::function<void(AttentionParams&)>> breaks = {
      [](AttentionParams& p) { p.head_dim = 20; },
      [](AttentionParams& p) { p.page_tokens = 48; },
      [](AttentionParams& p) { p.group_count = 0; },
      [](AttentionParams& p) { p.group_count = 65; },
      [](AttentionParams& p) { p.query_count = 0; },
      [](AttentionParams& p) { p.query_count = 65537; },
      [](AttentionParams& p) { p.q = nullptr; },
      [](AttentionParams& p) { p.q_stride = 127; },
      [](AttentionParams& p) { p.out_stride = 127; },
      [](AttentionParams& p) { p.first_position = -1; },
      [](AttentionParams& p) { p.softmax_scale = std::numeric_limits<float>::infinity(); },
      [&](AttentionParams& p) { p.pages = swapped; },
      [&](AttentionParams& p) { p.pages = broken; },
      [&](AttentionParams& p) { p.pages = far; },
  };
  for (size_t i = 0; i < breaks.size(); ++i) {
    AttentionParams p = good;
    breaks[i](p);
    EXPECT_THAT(AttentionCpu(p, scratch), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
    EXPECT_THAT(AttentionRef(p), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
  }
}

}  // namespace
}  // namespace pagoda::kernels
