// Goal: a comparison through the laboratory is what the worker itself would give, for the product's
// codec exactly and for round trips to their rounding; a codec that changes nothing costs nothing.
// Method: a tiny random model on two threads; identity round trips; the product's precisions
// measured both ways; attention over round-tripped rows summed in plain double.
#include "client/lab/quality_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "client/lab/coded_attention.h"
#include "client/worker/perplexity.h"
#include "client/worker/testing/memory_prefix_cache.h"
#include "client/worker/testing/tiny_model.h"
#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::lab {
namespace {

const RandomLlamaOptions kModel = {.head_dim = 64, .context_tokens = 1024};
constexpr auto kGoOn = [](int64_t, int64_t) { return true; };
constexpr int64_t kWindow = 64;

KvCodec Identity(int64_t tile_tokens) {
  KvCodec codec;
  codec.tile_tokens = tile_tokens;
  codec.k = codec.v = [](const Rows&) {};
  return codec;
}

class QualityRun : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<ExactReading> exact =
        ReadExactly(tiny_.pass(), tiny_.RandomIds(501, 1), kWindow, kGoOn);
    PAGODA_ASSERT_OK(exact);
    exact_ = *std::move(exact);
  }
  QualitySummary Codec(const KvCodec& codec) {
    absl::StatusOr<QualitySummary> quality = CompareCodec(tiny_.pass(), exact_, codec, kGoOn);
    PAGODA_CHECK(quality.ok());
    return *quality;
  }
  QualitySummary Codec(const std::string& name) { return Codec(*MakeKvCodec(name, 64, 64)); }
  QualitySummary Planes(LayerPlanes planes) {
    const std::vector<LayerPlanes> layers(tiny_.config().layer_count, planes);
    return *ComparePlanes(tiny_.pass(), exact_, layers, kGoOn);
  }

  TinyModel tiny_{kModel};
  ExactReading exact_;
};

TEST_F(QualityRun, TheProductsPrecisionsGiveWhatEvalPplGives) {
  const absl::StatusOr<PerplexityReport> report =
      EvaluatePerplexity(tiny_.pass(), exact_.ids, {.window_tokens = kWindow}, kGoOn);
  PAGODA_ASSERT_OK(report);
  for (const PerplexityRow& row : report->rows) {
    if (row.precision == Precision::kRaw16) continue;
    const QualitySummary quality = Codec(std::string(PrecisionName(row.precision)));
    EXPECT_EQ(quality.mean_kl, row.mean_kl);
    EXPECT_EQ(quality.p99_kl, row.p99_kl);
    EXPECT_EQ(quality.mean_nll, row.mean_nll);
    EXPECT_EQ(quality.nll_delta_percent, row.nll_delta_percent);
    EXPECT_EQ(quality.top1_agreement, row.top1_agreement);
  }
}

TEST_F(QualityRun, PlanesOfAllLayersAreThePrecisions) {
  EXPECT_EQ(Planes({}).mean_kl, Codec("q4").mean_kl);
  EXPECT_EQ(Planes({.k_lo = true, .v_lo = true}).mean_kl, Codec("q8").mean_kl);
  const double k_alone = Planes({.k_lo = true}).mean_kl;
  EXPECT_LT(k_alone, Codec("q4").mean_kl);
  EXPECT_GT(k_alone, Codec("q8").mean_kl);
}

TEST_F(QualityRun, ACodecThatChangesNothingCostsNothing) {
  const double q8 = Codec("q8").mean_kl;
  for (const int64_t tile_tokens : {64, 128}) {
    const QualitySummary quality = Codec(Identity(tile_tokens));
    // Sums over 128 channels instead of 64 round otherwise, as bf16 K and V do.
    EXPECT_LT(quality.mean_kl, 0.05 * q8);
    EXPECT_GT(quality.top1_agreement, 0.99);
  }
}

TEST_F(QualityRun, RoundTripsOfOurCodeCostWhatTheProductCosts) {
  EXPECT_NEAR(Codec("e44").mean_kl / Codec("q4").mean_kl, 1, 0.1);
  EXPECT_NEAR(Codec("e88").mean_kl / Codec("q8").mean_kl, 1, 0.2);
  // Once measured, the pass reads as before.
  EXPECT_EQ(Codec("q4").mean_kl, Codec("q4").mean_kl);
}

TEST_F(QualityRun, EveryCodecRunsAndFewerBitsCostMore) {
  for (const std::string& name : KvCodecNames()) {
    SCOPED_TRACE(name);
    EXPECT_GT(Codec(name).mean_kl, 0);
  }
  EXPECT_LT(Codec("e44").mean_kl, Codec("e43").mean_kl);
  EXPECT_LT(Codec("e43").mean_kl, Codec("e33").mean_kl);
  EXPECT_LT(Codec("e33").mean_kl, Codec("e22").mean_kl);
}

TEST_F(QualityRun, TheExactReadingBesideItselfDiffersInNothing) {
  const ReadingResult result = ResultOf(tiny_.pass(), exact_);
  EXPECT_EQ(result.quality.mean_kl, 0);
  EXPECT_EQ(result.quality.nll_delta_percent, 0);
  EXPECT_EQ(result.quality.top1_agreement, 1);
  EXPECT_GT(result.cost.bytes_per_token, 0);
  EXPECT_GT(result.cost.peak_bytes, 0);
  EXPECT_GT(result.cost.ttft_seconds, 0);
  EXPECT_GT(result.cost.decode_tokens_per_second, 0);
  ASSERT_EQ(result.windows.size(), 1u);  // positions 68 to 499
  EXPECT_EQ(result.windows[0].begin, kWindow + kernels::kSinkTokens);
  EXPECT_EQ(result.windows[0].end, 500);
  EXPECT_NEAR(result.windows[0].nll, result.quality.mean_nll, 1e-9);
  EXPECT_EQ(result.windows[0].nll, result.windows[0].exact_nll);
}

TEST_F(QualityRun, AWiderWindowAndALadderCostBytesAndGainQuality) {
  const auto compare = [&](int64_t window_tokens, int64_t q8_tokens) {
    const Reading reading = {.kv = {.precision = Precision::kQ4,
                                    .window_tokens = window_tokens,
                                    .q8_tokens = q8_tokens}};
    return *CompareReading(tiny_.pass(), exact_, reading, kGoOn);
  };
  const ReadingResult narrow = compare(kWindow, 0);
  const ReadingResult ladder = compare(kWindow, 256);
  const ReadingResult wide = compare(256, 0);
  EXPECT_EQ(narrow.quality.mean_kl, Codec("q4").mean_kl);
  EXPECT_LT(ladder.quality.mean_kl, narrow.quality.mean_kl);
  EXPECT_LT(wide.quality.mean_kl, narrow.quality.mean_kl);
  EXPECT_GT(ladder.cost.bytes_per_token, narrow.cost.bytes_per_token);
  EXPECT_GT(wide.cost.bytes_per_token, ladder.cost.bytes_per_token);
  // While a page is encoded it is there twice.
  EXPECT_GT(static_cast<double>(narrow.cost.peak_bytes), 500 * narrow.cost.bytes_per_token);
}

TEST_F(QualityRun, ASharedPrefixIsNeitherComputedNorScored) {
  MemoryPrefixCache cache;
  Reading reading = {.kv = {.precision = Precision::kQ4, .window_tokens = kWindow},
                     .cache = &cache};
  PAGODA_ASSERT_OK(
      ReadInto(tiny_.pass(), absl::MakeConstSpan(exact_.ids).subspan(0, 256), reading, kGoOn));
  EXPECT_EQ(cache.stored_count, 4);
  const absl::StatusOr<ReadingResult> warm = CompareReading(tiny_.pass(), exact_, reading, kGoOn);
  PAGODA_ASSERT_OK(warm);
  EXPECT_EQ(warm->cost.hit_tokens, 256);
  ASSERT_FALSE(warm->windows.empty());
  EXPECT_EQ(warm->windows[0].begin, 256);
  EXPECT_EQ(cache.conflict_count, 0);
  EXPECT_GT(warm->quality.mean_kl, 0);
  EXPECT_NEAR(warm->windows[0].nll, warm->quality.mean_nll, 1e-9);
  // Where everything would be loaded, one position is still computed.
  PAGODA_ASSERT_OK(ReadInto(tiny_.pass(), exact_.ids, reading, kGoOn));
  EXPECT_GT(CompareReading(tiny_.pass(), exact_, reading, kGoOn)->cost.hit_tokens, 256);
}

TEST_F(QualityRun, StopsWhenToldAndRefusesBadInput) {
  const auto stop = [](int64_t, int64_t) { return false; };
  const absl::StatusOr<KvCodec> codec = MakeKvCodec("e44", 64, 64);
  PAGODA_ASSERT_OK(codec);
  EXPECT_THAT(CompareCodec(tiny_.pass(), exact_, *codec, stop),
              StatusIs(absl::StatusCode::kCancelled, "256 of 500"));
  const auto read = [&](std::vector<uint32_t> ids, int64_t window) {
    return ReadExactly(tiny_.pass(), std::move(ids), window, kGoOn).status();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(read({}, 64), StatusIs(invalid, "expected 70 to 1025"));
  EXPECT_THAT(read(tiny_.RandomIds(69, 2), 64), StatusIs(invalid));
  PAGODA_EXPECT_OK(read(tiny_.RandomIds(70, 2), 64));
  EXPECT_THAT(read(tiny_.RandomIds(1026, 2), 64), StatusIs(invalid));
  EXPECT_THAT(read(tiny_.RandomIds(100, 2), -1), StatusIs(invalid));
  std::vector<uint32_t> ids = tiny_.RandomIds(100, 2);
  ids[50] = tiny_.config().vocab_size;
  EXPECT_THAT(read(ids, 64), StatusIs(invalid, "outside the vocabulary"));
}

TEST(QualityRunLimits, WideHeadsAreForTheProductsCodecsOnly) {
  TinyModel tiny({.head_dim = 256, .context_tokens = 256});
  const absl::StatusOr<ExactReading> exact =
      ReadExactly(tiny.pass(), tiny.RandomIds(201, 1), 0, kGoOn);
  PAGODA_ASSERT_OK(exact);
  PAGODA_EXPECT_OK(CompareCodec(tiny.pass(), *exact, *MakeKvCodec("q4", 256, 64), kGoOn));
  EXPECT_THAT(CompareCodec(tiny.pass(), *exact, *MakeKvCodec("e44", 256, 64), kGoOn),
              StatusIs(absl::StatusCode::kInvalidArgument, "at most 128"));
}

// Five pages of one head, window of one page: queries of the fifth read the first three through
// the codec, except the sinks, and the rest exactly.
TEST(CodedAttention, ReadsRoundTripsBeyondTheWindowAndExactRowsWithin) {
  const kernels::PageShape shape = {1, 1, 64, 64};
  constexpr int64_t kPages = 5, kDim = 64, kTokens = kPages * 64;
  std::vector<kernels::TestPage> pages;
  kernels::AttentionParams params;
  std::vector<kernels::PageTile> tiles;
  std::vector<double> k, v;
  for (int64_t page = 0; page < kPages; ++page) {
    pages.push_back(kernels::RandomRawPage(shape, page * 64, static_cast<uint32_t>(page)));
    tiles.push_back(pages.back().view().tile(0, 0));
    const bool coded = page < 3;
    for (int64_t i = 0; i < 64 * kDim; ++i) {
      const bool sink = page == 0 && i < kernels::kSinkTokens * kDim;
      const double factor = coded && !sink ? 1.001 : 1;  // bf16 alone could not tell it from 1
      k.push_back(factor * kernels::FloatFromBf16(tiles.back().raw_k[i]));
      v.push_back(factor * kernels::FloatFromBf16(tiles.back().raw_v[i]));
    }
  }
  KvCodec codec = Identity(64);
  codec.k = codec.v = [](const Rows& rows) {
    for (int64_t i = 0; i < rows.token_count * rows.head_dim; ++i) rows.data[i] *= 1.001F;
  };
  constexpr int kQueries = 2, kHeads = 2;
  std::vector<float> q(kQueries * kHeads * kDim), out(q.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(std::sin(1 + double(i)));
  params.q = q.data();
  params.out = out.data();
  params.q_stride = params.out_stride = kHeads * kDim;
  params.query_count = kQueries;
  params.group_count = kHeads;
  params.head_dim = kDim;
  params.page_tokens = 64;
  params.first_position = kTokens - kQueries;
  params.softmax_scale = 0.125F;
  params.pages = tiles;
  CodedAttention attention(codec, shape, 64);
  kernels::AttentionScratch scratch;
  PAGODA_ASSERT_OK(attention.Attend(0, 0, params, scratch));
  for (int64_t row = 0; row < kQueries * kHeads; ++row) {
    const int64_t seen = params.first_position + row / kHeads + 1;
    std::vector<double> logits(seen), sums(kDim);
    for (int64_t t = 0; t < seen; ++t) {
      for (int64_t c = 0; c < kDim; ++c) logits[t] += 0.125 * q[row * kDim + c] * k[t * kDim + c];
    }
    const double top = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (int64_t t = 0; t < seen; ++t) {
      const double p = std::exp(logits[t] - top);
      total += p;
      for (int64_t c = 0; c < kDim; ++c) sums[c] += p * v[t * kDim + c];
    }
    for (int64_t c = 0; c < kDim; ++c) EXPECT_NEAR(out[row * kDim + c], sums[c] / total, 1e-4);
  }
}

}  // namespace
}  // namespace pagoda::lab
