// Goal: a quest score is never below q . k of any token, exactly, at every precision, and the twins
// agree within the bound of page_score.h. Method: random pages and queries, ragged lengths, every
// target; products and sums of the inequality in double from the keys of the specification.
#include "kernels/page_score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/testing/each_target.h"
#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

constexpr PlaneId kDigests[] = {PlaneId::kQuestDigest, PlaneId::kCentreDigest,
                                PlaneId::kMeanDigest};
constexpr float kNone = -std::numeric_limits<float>::infinity();

TestPage PageOf(const PageShape& shape, Precision precision, uint32_t seed) {
  TestPage raw = RandomRawPage(shape, 0, seed);
  return precision == Precision::kRaw16 ? std::move(raw) : EncodedPage(raw, precision);
}

std::vector<uint16_t> Build(PlaneId digest, const PageTile& tile, const PageShape& shape,
                            decltype(&BuildDigestCpu) build) {
  std::vector<uint16_t> words(TileBytesOf(digest, shape).first / 2, 7);
  PAGODA_EXPECT_OK(build(digest, tile, shape, words.data()));
  return words;
}

struct Scores {
  std::vector<float> q;
  std::vector<float> ref;
  std::vector<float> cpu;
};

Scores ScoresOf(PlaneId digest, const std::vector<uint16_t>& words, int32_t token_count,
                const PageShape& shape, int32_t group_count, uint32_t seed) {
  Scores s;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  s.q.resize(static_cast<size_t>(group_count * shape.head_dim));
  for (float& x : s.q) x = 1.5f * normal(random);
  s.ref.assign(static_cast<size_t>(group_count * shape.page_tokens / kDigestTokens), 0);
  s.cpu = s.ref;
  const DigestTile tile = {words.data(), token_count};
  PageScoreParams p;
  p.digest = digest;
  p.q = s.q.data();
  p.group_count = group_count;
  p.head_dim = shape.head_dim;
  p.page_tokens = shape.page_tokens;
  p.tiles = absl::MakeConstSpan(&tile, 1);
  p.scores = s.ref.data();
  PAGODA_EXPECT_OK(ScorePagesRef(p));
  p.scores = s.cpu.data();
  PAGODA_EXPECT_OK(ScorePagesCpu(p));
  return s;
}

// Greatest q . k of the tokens of a unit, in double.
double GreatestLogit(const std::vector<double>& k, const float* q, int32_t dim, int32_t begin,
                     int32_t end) {
  double greatest = -std::numeric_limits<double>::infinity();
  for (int32_t t = begin; t < end; ++t) {
    double dot = 0;
    for (int32_t c = 0; c < dim; ++c) dot += double{q[c]} * k[t * dim + c];
    greatest = std::max(greatest, dot);
  }
  return greatest;
}

void ExpectBounds(const PageTile& tile, const PageShape& shape, const Scores& s,
                  int32_t group_count) {
  std::vector<double> k(static_cast<size_t>(shape.page_tokens * shape.head_dim));
  std::vector<double> v(k.size());
  PAGODA_ASSERT_OK(DecodeTileRef(tile, shape, k.data(), v.data()));
  const int32_t units = shape.page_tokens / kDigestTokens;
  for (int32_t i = 0; i < group_count * units; ++i) {
    const int32_t begin = i % units * kDigestTokens;
    const int32_t end = std::min(begin + kDigestTokens, tile.token_count);
    const double greatest =
        GreatestLogit(k, &s.q[i / units * shape.head_dim], shape.head_dim, begin, end);
    EXPECT_GE(s.ref[i], greatest) << i;
    EXPECT_GE(s.cpu[i], greatest) << i;
    if (begin >= end) {
      EXPECT_EQ(s.cpu[i], kNone);
    } else {
      EXPECT_TRUE(std::isfinite(s.cpu[i]));
    }
  }
}

// Sanitizers look at the same code at a few of them.
std::vector<int32_t> HeadDims() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return {24, 80};
#else
  return {16, 24, 64, 80, 96, 128, 256};
#endif
}

TEST(PageScoreTest, QuestNeverFallsBelowAnyLogit) {
  uint32_t seed = 1;
  for (const int32_t dim : HeadDims()) {
    const PageShape shape{1, 1, dim, 64};
    for (const Precision precision : {Precision::kRaw16, Precision::kQ8, Precision::kQ4}) {
      const TestPage page = PageOf(shape, precision, seed++);
      PageTile tile = page.view().tile(0, 0);
      for (const int32_t tokens : {1, 16, 17, 63, 64}) {
        if (precision == Precision::kRaw16) tile.token_count = tokens;
        SCOPED_TRACE(testing::Message() << dim << " " << PrecisionName(precision) << " " << tokens);
        ForEachTarget([&] {
          for (const auto build : {&BuildDigestRef, &BuildDigestCpu}) {
            const auto words = Build(PlaneId::kQuestDigest, tile, shape, build);
            for (const int32_t heads : {1, 3, 9}) {
              ExpectBounds(
                  tile, shape,
                  ScoresOf(PlaneId::kQuestDigest, words, tile.token_count, shape, heads, seed++),
                  heads);
            }
          }
        });
        if (precision != Precision::kRaw16) break;
      }
    }
  }
}

// One key and a query along it: the box is a point, and the bound is tight.
TEST(PageScoreTest, QuestOfOneTokenIsItsLogit) {
  const PageShape shape{1, 1, 64, 32};
  const TestPage page = PageOf(shape, Precision::kRaw16, 3);
  PageTile tile = page.view().tile(0, 0);
  tile.token_count = 1;
  const auto words = Build(PlaneId::kQuestDigest, tile, shape, &BuildDigestCpu);
  for (int32_t c = 0; c < 64; ++c) {
    EXPECT_EQ(words[c], tile.raw_k[c]);
    EXPECT_EQ(words[64 + c], tile.raw_k[c]);
  }
}

TEST(PageScoreTest, TwinsAgree) {
  uint32_t seed = 100;
  for (const PlaneId digest : kDigests) {
    for (const int32_t dim : {24, 80, 128}) {
      const PageShape shape{1, 1, dim, 128};
      for (const Precision precision : {Precision::kRaw16, Precision::kQ8, Precision::kQ4}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(digest) << " " << dim);
        const TestPage page = PageOf(shape, precision, seed);
        const PageTile tile = page.view().tile(0, 0);
        const auto ref = Build(digest, tile, shape, &BuildDigestRef);
        ForEachTarget([&] {
          const auto cpu = Build(digest, tile, shape, &BuildDigestCpu);
          for (size_t i = 0; i < ref.size(); ++i) {
            const float x = FloatFromBf16(ref[i]);
            ASSERT_NEAR(FloatFromBf16(cpu[i]), x, 0x1p-7 * std::fabs(x) + 1e-3) << i;
          }
          const Scores s = ScoresOf(digest, ref, 128, shape, 5, seed);
          const int32_t units = shape.page_tokens / kDigestTokens;
          for (size_t i = 0; i < s.ref.size(); ++i) {
            const float* q = &s.q[i / units * dim];
            const uint16_t* low = &ref[i % units * DigestRows(digest) * dim];
            const uint16_t* high = low + (DigestRows(digest) - 1) * dim;
            double magnitude = 0;
            for (int32_t c = 0; c < dim; ++c) {
              magnitude += std::fabs(q[c]) * std::max(std::fabs(FloatFromBf16(low[c])),
                                                      std::fabs(FloatFromBf16(high[c])));
            }
            ASSERT_NEAR(s.cpu[i], s.ref[i], (2 * dim + 8) * 0x1p-24 * magnitude) << i;
          }
        });
        ++seed;
      }
    }
  }
}

TEST(PageScoreTest, DigestsLieInPagesAsPlanes) {
  const PageShape shape{3, 2, 80, 64};
  TestPage page = PageOf(shape, Precision::kQ8, 5);
  EXPECT_EQ(page.view().digest(PlaneId::kQuestDigest, 0, 0), nullptr);
  const TileBytes tile = TileBytesOf(PlaneId::kQuestDigest, shape);
  EXPECT_EQ(tile.first, 4 * 2 * 80 * 2);
  EXPECT_EQ(tile.second, 0);
  AppendPlane(PlaneId::kQuestDigest, shape, page.header);
  AssignOffsets(page.header);
  while (page.segments.size() < page.header.segments.size()) {
    page.segments.emplace_back(page.header.segments[page.segments.size()].stored_bytes());
  }
  const PageView view = page.view();
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      const uint16_t* words = view.digest(PlaneId::kQuestDigest, layer, head);
      ASSERT_NE(words, nullptr);
      PAGODA_EXPECT_OK(BuildDigestCpu(PlaneId::kQuestDigest, view.tile(layer, head), shape,
                                      const_cast<uint16_t*>(words)));
    }
  }
  EXPECT_EQ(view.precision(), Precision::kQ8);  // what reads K and V is not disturbed
  EXPECT_EQ(view.digest(PlaneId::kMeanDigest, 0, 0), nullptr);
  const auto words = Build(PlaneId::kQuestDigest, view.tile(2, 1), shape, &BuildDigestCpu);
  EXPECT_EQ(std::vector<uint16_t>(view.digest(PlaneId::kQuestDigest, 2, 1),
                                  view.digest(PlaneId::kQuestDigest, 2, 1) + words.size()),
            words);
}

TEST(PageScoreTest, WrongCallsAreRefused) {
  const PageShape shape{1, 1, 64, 32};
  const TestPage page = PageOf(shape, Precision::kRaw16, 6);
  const PageTile tile = page.view().tile(0, 0);
  std::vector<uint16_t> words(1024);
  std::vector<float> floats(1024);
  for (const auto build : {&BuildDigestRef, &BuildDigestCpu}) {
    for (const absl::Status& status :
         {build(PlaneId::kKHi, tile, shape, words.data()),
          build(PlaneId::kMeanDigest, PageTile{}, shape, words.data()),
          build(PlaneId::kMeanDigest, tile, PageShape{1, 1, 20, 32}, words.data()),
          build(PlaneId::kMeanDigest, tile, shape, nullptr)}) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    }
  }
  const DigestTile good_tile = {words.data(), 32};
  const DigestTile long_tile = {words.data(), 33};
  const DigestTile no_words = {nullptr, 3};
  PageScoreParams good;
  good.q = floats.data();
  good.scores = floats.data() + 512;
  good.group_count = 2;
  good.head_dim = 64;
  good.page_tokens = 32;
  good.tiles = absl::MakeConstSpan(&good_tile, 1);
  PAGODA_EXPECT_OK(ScorePagesCpu(good));
  const std::vector<std::function<void(PageScoreParams&)>> breaks = {
      [](PageScoreParams& p) { p.digest = PlaneId::kRaw16; },
      [](PageScoreParams& p) { p.q = nullptr; },
      [](PageScoreParams& p) { p.scores = nullptr; },
      [](PageScoreParams& p) { p.group_count = 65; },
      [](PageScoreParams& p) { p.head_dim = 20; },
      [&](PageScoreParams& p) { p.tiles = absl::MakeConstSpan(&long_tile, 1); },
      [&](PageScoreParams& p) { p.tiles = absl::MakeConstSpan(&no_words, 1); },
  };
  for (size_t i = 0; i < breaks.size(); ++i) {
    PageScoreParams p = good;
    breaks[i](p);
    EXPECT_THAT(ScorePagesCpu(p), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
    EXPECT_THAT(ScorePagesRef(p), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
  }
}

}  // namespace
}  // namespace pagoda::kernels
