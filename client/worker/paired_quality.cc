#include "client/worker/paired_quality.h"

#include <algorithm>
#include <cmath>

#include "client/worker/elementwise.h"
#include "client/worker/sampler.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

constexpr int64_t kErrorBlock = 128;  // positions that count as one sample of the standard error

double Mean(absl::Span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Of the mean of `values`, from the spread of the means of whole blocks; 0 for fewer than two.
double StandardError(absl::Span<const double> values) {
  std::vector<double> means;
  for (size_t begin = 0; begin + kErrorBlock <= values.size(); begin += kErrorBlock) {
    means.push_back(Mean(values.subspan(begin, kErrorBlock)));
  }
  if (means.size() < 2) return 0;
  const double mean = Mean(means);
  double squares = 0;
  for (const double value : means) squares += (value - mean) * (value - mean);
  const auto count = static_cast<double>(means.size());
  return std::sqrt(squares / (count - 1) / count);
}

double Percentile99(std::vector<double> values) {
  const auto at = values.begin() + static_cast<int64_t>(values.size() * 99 / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

ReferenceLogits::ReferenceLogits(absl::Span<const float> logits)
    : logits_(logits),
      log_sum_exp_(LogSumExp(logits.data(), static_cast<int64_t>(logits.size()))),
      top_(ArgMax(logits)) {}

void ReferenceLogits::Score(absl::Span<const float> logits, uint32_t target, int64_t position,
                            PositionScores& scores) const {
  const auto vocab_size = static_cast<int64_t>(logits.size());
  const double lse = LogSumExp(logits.data(), vocab_size);
  scores.nll[position] = lse - logits[target];
  scores.kl[position] = KlDivergence(logits_.data(), log_sum_exp_, logits.data(), lse, vocab_size);
  scores.agrees[position] = ArgMax(logits) == top_ ? 1 : 0;
}

QualitySummary SummarizeQuality(const PositionScores& scores,
                                absl::Span<const double> reference_nll, int64_t first_scored) {
  PAGODA_CHECK(scores.nll.size() == reference_nll.size());
  PAGODA_CHECK(first_scored >= 0);
  PAGODA_CHECK(first_scored < static_cast<int64_t>(reference_nll.size()));
  const absl::Span<const double> nll = absl::MakeConstSpan(scores.nll).subspan(first_scored);
  const absl::Span<const double> kl = absl::MakeConstSpan(scores.kl).subspan(first_scored);
  const absl::Span<const double> reference = reference_nll.subspan(first_scored);
  std::vector<double> delta(nll.begin(), nll.end());
  for (size_t i = 0; i < delta.size(); ++i) delta[i] -= reference[i];
  const double reference_mean = Mean(reference);
  const int64_t agreeing =
      std::count(scores.agrees.begin() + first_scored, scores.agrees.end(), uint8_t{1});
  QualitySummary summary;
  summary.mean_nll = Mean(nll);
  summary.perplexity = std::exp(summary.mean_nll);
  summary.all_mean_nll = Mean(scores.nll);
  summary.nll_delta_percent = 100 * Mean(delta) / reference_mean;
  summary.nll_delta_standard_error_percent = 100 * StandardError(delta) / reference_mean;
  summary.mean_kl = Mean(kl);
  summary.p99_kl = Percentile99({kl.begin(), kl.end()});
  summary.top1_agreement = static_cast<double>(agreeing) / static_cast<double>(kl.size());
  return summary;
}

}  // namespace pagoda
