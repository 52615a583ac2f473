// Goal: a text whose end is decoded says what its prefill says, floats and integers lie close
// together, and bad input is refused. Method: a tiny random model on two threads.
#include "client/lab/decode_run.h"

#include <gtest/gtest.h>

#include "client/worker/testing/tiny_model.h"
#include "kernels/isa.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::lab {
namespace {

constexpr auto kGoOn = [](int64_t, int64_t) { return true; };
constexpr int64_t kWindow = 64;

class DecodeRun : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<ExactReading> exact =
        ReadExactly(tiny_.pass(), tiny_.RandomIds(401, 1), kWindow, kGoOn);
    PAGODA_ASSERT_OK(exact);
    exact_ = *std::move(exact);
  }
  absl::StatusOr<DecodeComparison> Compare(Precision precision, int64_t decoded_tokens) {
    return CompareDecode(tiny_.pass(), exact_, {.precision = precision, .window_tokens = kWindow},
                         decoded_tokens, kGoOn);
  }

  TinyModel tiny_{{.head_dim = 64, .context_tokens = 512}};
  ExactReading exact_;
};

TEST_F(DecodeRun, Raw16DecodesWhatPrefillSays) {
  const absl::StatusOr<DecodeComparison> found = Compare(Precision::kRaw16, 150);
  PAGODA_ASSERT_OK(found);
  EXPECT_LT(found->floats.mean_kl, 1e-5);
  EXPECT_EQ(found->between.mean_kl, 0);  // no codes, no integers
}

TEST_F(DecodeRun, IntegersAddLittleToWhatCodesCost) {
  const absl::StatusOr<DecodeComparison> q4 = Compare(Precision::kQ4, 150);
  PAGODA_ASSERT_OK(q4);
  EXPECT_GT(q4->floats.mean_kl, 0);
  const std::string isa = kernels::AvailableIsas().front();
  if (isa == "avx512-vnni" || isa == "avx2") {
    EXPECT_GT(q4->between.mean_kl, 0);
  }
  EXPECT_LT(q4->between.mean_kl, 0.1 * q4->floats.mean_kl);
  EXPECT_NEAR(q4->integers.mean_kl / q4->floats.mean_kl, 1, 0.2);
  // Once measured, the pass reads as before.
  EXPECT_EQ(Compare(Precision::kQ4, 150)->integers.mean_kl, q4->integers.mean_kl);
}

TEST_F(DecodeRun, RefusesBadInputAndStopsWhenTold) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Compare(Precision::kQ4, 0), StatusIs(invalid, "expected 1 to 332"));
  EXPECT_THAT(Compare(Precision::kQ4, 333), StatusIs(invalid, "expected 1 to 332"));
  PAGODA_EXPECT_OK(Compare(Precision::kQ4, 332));
  const auto stop = [](int64_t done, int64_t) { return done < 300; };
  EXPECT_THAT(CompareDecode(tiny_.pass(), exact_, {.precision = Precision::kQ4}, 150, stop),
              StatusIs(absl::StatusCode::kCancelled, "of 400"));
}

}  // namespace
}  // namespace pagoda::lab
