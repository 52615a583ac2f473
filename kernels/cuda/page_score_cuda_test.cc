// Goal: digests and scores of the device are those of page_score.h. Method: random pages of two kv
// heads at each precision, ragged ends; the quest words compared bit for bit with the CPU's, scores
// with the specification on the device's own digests. The same source runs on the emulated device
// and on a GPU.
#include "kernels/cuda/page_score_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/testing/device_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kGroup = 3;

struct Case {
  PageShape shape;
  PlaneId digest;
  Precision precision;
  int32_t token_count;
};

void ExpectTwins(const Case& c, uint32_t seed) {
  const TestPage raw = RandomRawPage(c.shape, 0, seed);
  const bool is_raw = c.precision == Precision::kRaw16;
  const TestPage page = is_raw ? RandomRawPage(c.shape, 0, seed) : EncodedPage(raw, c.precision);
  const DevicePage device(page);
  PageTile first = device.view().tile(0, 0);
  first.token_count = c.token_count;
  const DeviceVector<PageTile> tiles(std::vector<PageTile>{first});
  const int64_t head_words = TileBytesOf(c.digest, c.shape).first / 2;
  DeviceVector<uint16_t> words(static_cast<size_t>(kHeads * head_words));
  const DeviceVector<uint16_t*> targets(std::vector<uint16_t*>{words.data()});
  PAGODA_ASSERT_OK(BuildDigestsCuda(
      {c.digest, tiles.data(), targets.data(), 1, kHeads, c.shape.head_dim, c.shape.page_tokens},
      nullptr));
  const std::vector<uint16_t> built = words.ToHost();
  const int32_t units = c.shape.page_tokens / kDigestTokens;
  std::vector<float> q(static_cast<size_t>(kHeads * kGroup * c.shape.head_dim));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (float& x : q) x = normal(random);
  const DeviceVector<float> device_q(q);
  const DeviceVector<DigestTile> digests(std::vector<DigestTile>{{words.data(), c.token_count}});
  DeviceVector<float> device_scores(static_cast<size_t>(kHeads * kGroup * units));
  PAGODA_ASSERT_OK(ScorePagesCuda({c.digest, device_q.data(), digests.data(), device_scores.data(),
                                   1, kHeads, kGroup, c.shape.head_dim, c.shape.page_tokens},
                                  nullptr));
  const std::vector<float> scores = device_scores.ToHost();

  for (int32_t head = 0; head < kHeads; ++head) {
    PageTile tile = page.view().tile(0, head);
    tile.token_count = c.token_count;
    std::vector<uint16_t> cpu(static_cast<size_t>(head_words));
    PAGODA_ASSERT_OK(BuildDigestCpu(c.digest, tile, c.shape, cpu.data()));
    for (int64_t i = 0; i < head_words; ++i) {
      const uint16_t word = built[head * head_words + i];
      const float x = FloatFromBf16(cpu[i]);
      if (c.digest == PlaneId::kQuestDigest) {
        ASSERT_EQ(word, cpu[i]) << i;
      }
      ASSERT_NEAR(FloatFromBf16(word), x, 0x1p-7 * std::fabs(x) + 1e-4) << i;
    }
    std::vector<float> ref(static_cast<size_t>(kGroup * units));
    const DigestTile own = {&built[head * head_words], c.token_count};
    PageScoreParams p;
    p.digest = c.digest;
    p.q = &q[head * kGroup * c.shape.head_dim];
    p.group_count = kGroup;
    p.head_dim = c.shape.head_dim;
    p.page_tokens = c.shape.page_tokens;
    p.tiles = absl::MakeConstSpan(&own, 1);
    p.scores = ref.data();
    PAGODA_ASSERT_OK(ScorePagesRef(p));
    for (size_t i = 0; i < ref.size(); ++i) {
      const float score = scores[head * ref.size() + i];
      if (std::isinf(ref[i])) {
        ASSERT_EQ(score, ref[i]);
        continue;
      }
      if (c.digest == PlaneId::kQuestDigest) {
        ASSERT_GE(score, std::nextafter(ref[i], -1e30f));
      }
      ASSERT_NEAR(score, ref[i], 1e-4 * c.shape.head_dim) << i;
    }
  }
}

TEST(PageScoreCudaTest, DigestsAndScoresAreThoseOfTheTwins) {
  uint32_t seed = 1;
  for (const int32_t head_dim : {64, 80, 96, 128, 256}) {
    for (const PlaneId digest :
         {PlaneId::kQuestDigest, PlaneId::kCentreDigest, PlaneId::kMeanDigest}) {
      const PageShape shape{1, kHeads, head_dim, 64};
      for (const int32_t tokens : {1, 17, 64}) {
        SCOPED_TRACE(testing::Message() << head_dim << " " << static_cast<int>(digest));
        ExpectTwins({shape, digest, Precision::kRaw16, tokens}, seed++);
      }
      ExpectTwins({shape, digest, Precision::kQ8, 64}, seed++);
      ExpectTwins({shape, digest, Precision::kQ4, 64}, seed++);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PageScoreCudaTest, WrongCallsAreRefused) {
  DeviceVector<PageTile> tiles(1);
  DeviceVector<uint16_t*> words(1);
  DeviceVector<float> floats(1);
  DeviceVector<DigestTile> digests(1);
  constexpr PlaneId kMean = PlaneId::kMeanDigest;
  for (const BuildDigestParams& p :
       {BuildDigestParams{PlaneId::kKHi, tiles.data(), words.data(), 1, 1, 64, 64},
        BuildDigestParams{kMean, nullptr, words.data(), 1, 1, 64, 64},
        BuildDigestParams{kMean, tiles.data(), nullptr, 1, 1, 64, 64},
        BuildDigestParams{kMean, tiles.data(), words.data(), 0, 1, 64, 64},
        BuildDigestParams{kMean, tiles.data(), words.data(), 1, 257, 64, 64},
        BuildDigestParams{kMean, tiles.data(), words.data(), 1, 1, 72, 64}}) {
    EXPECT_THAT(BuildDigestsCuda(p, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  float* f = floats.data();
  for (const DeviceScoreParams& p :
       {DeviceScoreParams{PlaneId::kVHi, f, digests.data(), f, 1, 1, 1, 64, 64},
        DeviceScoreParams{kMean, nullptr, digests.data(), f, 1, 1, 1, 64, 64},
        DeviceScoreParams{kMean, f, nullptr, f, 1, 1, 1, 64, 64},
        DeviceScoreParams{kMean, f, digests.data(), f, 40000, 1, 1, 64, 64},
        DeviceScoreParams{kMean, f, digests.data(), f, 1, 1, 65, 64, 64},
        DeviceScoreParams{kMean, f, digests.data(), f, 1, 1, 1, 64, 48}}) {
    EXPECT_THAT(ScorePagesCuda(p, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace pagoda::kernels::cuda
