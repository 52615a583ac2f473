// Goal: the report's numbers are those of its definitions, its precisions are compared pairwise
// over the right positions, and bad input is refused. Method: a tiny random model whose logits are
// computed again one sequence at a time and summed in plain double; closed forms.
#include "client/worker/perplexity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "client/worker/testing/tiny_model.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

const RandomLlamaOptions kModel = {.head_dim = 64, .context_tokens = 1024};
constexpr auto kGoOn = [](int64_t, int64_t) { return true; };

// Log-probabilities after every token.
std::vector<std::vector<double>> LogProbabilities(TinyModel& tiny, absl::Span<const uint32_t> ids,
                                                  Precision precision, int64_t window) {
  KvSequence sequence = tiny.MakeSequence(precision, window);
  std::vector<std::vector<double>> rows;
  const int64_t hidden_size = tiny.config().hidden_size;
  while (!ids.empty()) {
    const int64_t done = *tiny.pass().PrefillChunk(ids, sequence);
    ids.remove_prefix(done);
    for (int64_t row = 0; row < done; ++row) {
      std::vector<float> hidden(hidden_size);
      tiny.pass().FinalHidden(row, 1, absl::MakeSpan(hidden));
      std::vector<float> logits(tiny.config().vocab_size);
      tiny.pass().LogitsOf(hidden, absl::MakeSpan(logits));
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      std::vector<double> log_probabilities;
      for (const float logit : logits) log_probabilities.push_back(logit - std::log(sum));
      rows.push_back(log_probabilities);
    }
  }
  return rows;
}

TEST(Perplexity, NumbersAreThoseOfTheirDefinitions) {
  TinyModel tiny(kModel);
  const int64_t window = 64;
  const std::vector<uint32_t> ids = tiny.RandomIds(501, 1);
  int64_t last_done = 0;
  const absl::StatusOr<PerplexityReport> report = EvaluatePerplexity(
      tiny.pass(), ids, {.window_tokens = window}, [&](int64_t done, int64_t total) {
        EXPECT_GT(done, last_done);
        EXPECT_EQ(total, 500);
        last_done = done;
        return true;
      });
  PAGODA_ASSERT_OK(report);
  EXPECT_EQ(last_done, 500);
  EXPECT_EQ(report->token_count, 500);
  EXPECT_EQ(report->scored_count, 500 - 68);
  ASSERT_EQ(report->rows.size(), 3u);

  const auto inputs = absl::MakeConstSpan(ids).subspan(0, 500);
  const auto reference = LogProbabilities(tiny, inputs, Precision::kRaw16, window);
  for (const PerplexityRow& row : report->rows) {
    SCOPED_TRACE(PrecisionName(row.precision));
    const auto own = LogProbabilities(tiny, inputs, row.precision, window);
    double nll = 0, all_nll = 0, reference_nll = 0, kl = 0, agreeing = 0;
    for (int64_t position = 0; position < 500; ++position) {
      all_nll -= own[position][ids[position + 1]];
      if (position < 68) continue;
      nll -= own[position][ids[position + 1]];
      reference_nll -= reference[position][ids[position + 1]];
      for (size_t i = 0; i < own[position].size(); ++i) {
        kl += std::exp(reference[position][i]) * (reference[position][i] - own[position][i]);
      }
      const auto top = [](const std::vector<double>& values) {
        return std::max_element(values.begin(), values.end()) - values.begin();
      };
      agreeing += top(own[position]) == top(reference[position]) ? 1 : 0;
    }
    const double count = 500 - 68;
    EXPECT_NEAR(row.mean_nll, nll / count, 1e-5);
    EXPECT_NEAR(row.perplexity, std::exp(nll / count), 1e-2);
    EXPECT_NEAR(row.all_mean_nll, all_nll / 500, 1e-5);
    EXPECT_NEAR(row.nll_delta_percent, 100 * (nll - reference_nll) / reference_nll, 1e-3);
    EXPECT_NEAR(row.mean_kl, kl / count, 0.02 * kl / count + 1e-7);
    EXPECT_NEAR(row.top1_agreement, agreeing / count, 1e-9);
    EXPECT_GE(row.p99_kl, row.mean_kl);
  }
  const PerplexityRow& raw = report->rows[0];
  const PerplexityRow& q8 = report->rows[1];
  const PerplexityRow& q4 = report->rows[2];
  EXPECT_EQ(raw.precision, Precision::kRaw16);
  EXPECT_EQ(raw.mean_kl, 0);
  EXPECT_EQ(raw.nll_delta_percent, 0);
  EXPECT_EQ(raw.top1_agreement, 1);
  EXPECT_GT(q8.mean_kl, 0);
  EXPECT_GT(q4.mean_kl, 50 * q8.mean_kl);  // the square of 16, about
  EXPECT_GT(q4.nll_delta_standard_error_percent, 0);
  EXPECT_LT(q4.kv_bytes_per_token, q8.kv_bytes_per_token);
  EXPECT_LT(q8.kv_bytes_per_token, raw.kv_bytes_per_token);
}

TEST(Perplexity, BothSidesOfTheLengthLimits) {
  TinyModel tiny(kModel);
  const PerplexityOptions options = {.precisions = {Precision::kQ4}, .window_tokens = 64};
  const auto evaluate = [&](int64_t count) {
    return EvaluatePerplexity(tiny.pass(), tiny.RandomIds(count, 2), options, kGoOn);
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(evaluate(0), StatusIs(invalid, "expected 70 to 1025"));
  EXPECT_THAT(evaluate(69), StatusIs(invalid));
  EXPECT_EQ(evaluate(70)->scored_count, 1);
  EXPECT_EQ(evaluate(1025)->token_count, 1024);
  EXPECT_THAT(evaluate(1026), StatusIs(invalid));
}

TEST(Perplexity, RefusesBadOptionsAndTokens) {
  TinyModel tiny(kModel);
  std::vector<uint32_t> ids = tiny.RandomIds(300, 3);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(EvaluatePerplexity(tiny.pass(), ids, {.precisions = {Precision::kRaw16}}, kGoOn),
              StatusIs(invalid, "expected q8 or q4"));
  EXPECT_THAT(EvaluatePerplexity(tiny.pass(), ids, {.window_tokens = -1}, kGoOn),
              StatusIs(invalid, "window"));
  ids.back() = tiny.config().vocab_size;
  EXPECT_THAT(EvaluatePerplexity(tiny.pass(), ids, {}, kGoOn), StatusIs(invalid, "vocabulary"));
}

TEST(Perplexity, StopsWhenTold) {
  TinyModel tiny(kModel);
  int calls = 0;
  EXPECT_THAT(EvaluatePerplexity(tiny.pass(), tiny.RandomIds(900, 4), {},
                                 [&](int64_t, int64_t) { return ++calls < 2; }),
              StatusIs(absl::StatusCode::kCancelled, "of 899"));
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace pagoda
