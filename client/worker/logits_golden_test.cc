// Goal: the golden file reads, and the divergence computed against it is right. Method: the
// committed file's own consistency; KL against known distributions; cut files.
#include "client/worker/testing/logits_golden.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr char kPath[] = "tests/golden/logits.bin";

// Logits that have the golden distribution, the rest spread evenly over all other tokens.
std::vector<float> LogitsOf(const GoldenPosition& position, uint32_t vocab_size) {
  const double others = vocab_size - static_cast<double>(position.top_ids.size());
  const double rest = std::log(position.rest_mass / others);
  std::vector<float> logits(vocab_size, static_cast<float>(rest + position.log_sum_exp));
  for (size_t i = 0; i < position.top_ids.size(); ++i) {
    logits[position.top_ids[i]] = position.top_logprobs[i] + position.log_sum_exp;
  }
  return logits;
}

TEST(LogitsGoldenTest, TheCommittedFileIsConsistent) {
  const auto golden = ReadLogitsGolden(kPath);
  PAGODA_ASSERT_OK(golden);
  EXPECT_EQ(golden->weights_revision.size(), 64u);
  EXPECT_EQ(golden->vocab_size, 49152u);
  ASSERT_EQ(golden->texts.size(), 3u);
  for (const GoldenText& text : golden->texts) {
    EXPECT_EQ(text.tokens.size(), 256u);
    ASSERT_EQ(text.positions.size(), 64u);
    for (size_t i = 0; i < text.positions.size(); ++i) {
      const GoldenPosition& position = text.positions[i];
      EXPECT_EQ(position.position, 4 * i + 3);
      double mass = position.rest_mass;
      for (const float logprob : position.top_logprobs) mass += std::exp(double{logprob});
      EXPECT_NEAR(mass, 1, 1e-5);
      EXPECT_GE(position.top_logprobs[0], position.top_logprobs[255]);
      for (const uint16_t id : position.top_ids) ASSERT_LT(id, golden->vocab_size);
      EXPECT_NEAR(KlDivergence(position, LogitsOf(position, golden->vocab_size)), 0, 1e-6);
    }
  }
}

TEST(LogitsGoldenTest, DivergenceOfKnownDistributions) {
  // Golden: 0.5, 0.25, rest 0.25 over two tokens. Compared with 0.25 each.
  GoldenPosition golden;
  golden.top_ids = {2, 0};
  golden.top_logprobs = {std::log(0.5F), std::log(0.25F)};
  golden.rest_mass = 0.25F;
  const double expected = 0.5 * std::log(2.0) + 0.25 * std::log(0.25 / 0.5);
  EXPECT_NEAR(KlDivergence(golden, {7, 7, 7, 7}), expected, 1e-6);
  EXPECT_DEATH(KlDivergence(golden, {7, 7}), "PAGODA_CHECK");
}

TEST(LogitsGoldenTest, EveryCutIsSeen) {
  EXPECT_THAT(ReadLogitsGolden("tests/golden/none"), StatusIs(absl::StatusCode::kNotFound, "none"));
  std::ifstream input(kPath, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(input)), std::istreambuf_iterator<char>());
  const std::string path = ::testing::TempDir() + "/logits." + std::to_string(getpid());
  const auto status_of = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return ReadLogitsGolden(path).status();
  };
  for (const size_t size : {size_t{0}, size_t{39}, size_t{55}, size_t{56}, size_t{100},
                            size_t{4000}, good.size() - 1}) {
    EXPECT_THAT(status_of(good.substr(0, size)), StatusIs(absl::StatusCode::kDataLoss)) << size;
  }
  EXPECT_THAT(status_of(good + "x"), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(status_of("x" + good.substr(1)), StatusIs(absl::StatusCode::kDataLoss));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace pagoda
