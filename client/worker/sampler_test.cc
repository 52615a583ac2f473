// Goal: draws follow the distribution and are the same on every machine. Method: known draws
// written down, frequencies against probabilities, each edge of the options.
#include "client/worker/sampler.h"

#include <cmath>
#include <limits>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using ::testing::ElementsAre;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Sampler Make(const SamplerOptions& options) {
  auto sampler = Sampler::Create(options);
  PAGODA_EXPECT_OK(sampler);
  return *std::move(sampler);
}

TEST(SamplerTest, ArgMaxTakesTheLowestIndex) {
  EXPECT_EQ(ArgMax({1, 3, 3, 2}), 1u);
  EXPECT_EQ(ArgMax({-5}), 0u);
  EXPECT_EQ(ArgMax({kNan, -1, kNan, 2}), 3u);
  EXPECT_EQ(ArgMax({kNan, kNan}), 0u);
  EXPECT_EQ(ArgMax({-kInfinity, -kInfinity}), 0u);
  EXPECT_EQ(ArgMax({0, kInfinity}), 1u);
}

TEST(SamplerTest, TemperatureZeroIsGreedy) {
  Sampler sampler = Make({});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sampler.Next({0, 5, 5}), 1u);
}

TEST(SamplerTest, ChecksOptions) {
  PAGODA_EXPECT_OK(Sampler::Create({.temperature = 100, .top_p = 1}));
  for (const float temperature : {-0.1F, 100.1F, kNan}) {
    EXPECT_THAT(Sampler::Create({.temperature = temperature}),
                StatusIs(absl::StatusCode::kInvalidArgument, "temperature"));
  }
  for (const float top_p : {0.0F, -1.0F, 1.1F, kNan}) {
    EXPECT_THAT(Sampler::Create({.top_p = top_p}),
                StatusIs(absl::StatusCode::kInvalidArgument, "top_p"));
  }
}

TEST(SamplerTest, FrequenciesFollowProbabilities) {
  const std::vector<float> logits = {0, 1, 2, -kInfinity, 3, kNan};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    Sampler sampler = Make({.temperature = temperature, .seed = 42});
    std::vector<int> counts(logits.size());
    constexpr int kDraws = 40000;
    for (int i = 0; i < kDraws; ++i) ++counts[sampler.Next(logits)];
    double total = 0;
    for (const int i : {0, 1, 2, 4}) total += std::exp(logits[i] / temperature);
    for (const int i : {0, 1, 2, 4}) {
      const double expected = std::exp(logits[i] / temperature) / total;
      EXPECT_NEAR(counts[i] / double{kDraws}, expected, 0.01) << i << " at " << temperature;
    }
    EXPECT_EQ(counts[3] + counts[5], 0);
  }
}

TEST(SamplerTest, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.125 with the first three at odd places.
  const std::vector<float> logits = {std::log(0.125F), std::log(0.5F), std::log(0.125F),
                                     std::log(0.25F)};
  const auto seen = [&](float top_p) {
    Sampler sampler = Make({.temperature = 1, .top_p = top_p, .seed = 7});
    std::vector<int> counts(4);
    for (int i = 0; i < 4000; ++i) ++counts[sampler.Next(logits)];
    return counts;
  };
  std::vector<int> counts = seen(0.4F);
  EXPECT_THAT(counts, ElementsAre(0, 4000, 0, 0));
  counts = seen(0.6F);
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_NEAR(counts[1] / 4000.0, 2.0 / 3, 0.03);
  counts = seen(0.8F);  // one of two equals: the lower id
  EXPECT_GT(counts[0], 0);
  EXPECT_EQ(counts[2], 0);
  counts = seen(0.999F);
  EXPECT_GT(counts[2], 0);
  EXPECT_THAT(seen(1e-6F), ElementsAre(0, 4000, 0, 0));
}

TEST(SamplerTest, KnownDraws) {
  // Written down once: another machine or compiler that differs here breaks the promise.
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 37) * 0.125F;
  Sampler warm = Make({.temperature = 0.8F, .top_p = 0.9F, .seed = 1});
  Sampler open = Make({.temperature = 1.0F, .seed = 1});
  std::vector<uint32_t> draws;
  for (int i = 0; i < 6; ++i) draws.push_back(warm.Next(logits));
  for (int i = 0; i < 6; ++i) draws.push_back(open.Next(logits));
  EXPECT_THAT(draws, ElementsAre(587, 103, 134, 292, 292, 399, 582, 761, 987, 443, 443, 772));
}

TEST(SamplerTest, SeedsRepeatAndDiffer) {
  std::vector<float> logits(50, 0.0F);
  const auto draw = [&](uint64_t seed) {
    Sampler sampler = Make({.temperature = 1, .seed = seed});
    std::vector<uint32_t> draws;
    for (int i = 0; i < 20; ++i) draws.push_back(sampler.Next(logits));
    return draws;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(SamplerTest, DegenerateLogits) {
  Sampler sampler = Make({.temperature = 1, .top_p = 0.5F});
  EXPECT_EQ(sampler.Next({3}), 0u);
  EXPECT_EQ(sampler.Next({kNan, kNan}), 0u);
  EXPECT_EQ(sampler.Next({-kInfinity, -kInfinity}), 0u);
  EXPECT_EQ(sampler.Next({0, kInfinity}), 1u);
  EXPECT_EQ(sampler.Next({-1e30F, 1e30F}), 1u);
}

}  // namespace
}  // namespace pagoda
