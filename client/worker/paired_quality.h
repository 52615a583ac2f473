// How far one run over a text is from another over the same text: negative log-likelihood (NLL) and
// KL divergence position by position, then means over the scored positions. It computes no logits.
//
// Units      nats per token; percent where the name says so
// Threads    Score() on different positions at once; the rest is pure
// Limits     none; 17 bytes per position
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pagoda {

// What one run says at every position.
struct PositionScores {
  explicit PositionScores(int64_t position_count)
      : nll(position_count), kl(position_count), agrees(position_count, 1) {}

  std::vector<double> nll;
  std::vector<double> kl;       // of this run from the reference
  std::vector<uint8_t> agrees;  // the likeliest token is the reference's
};

// Logits of the reference at one position, with what every comparison needs of them.
class ReferenceLogits {
 public:
  explicit ReferenceLogits(absl::Span<const float> logits);

  absl::Span<const float> logits() const { return logits_; }
  double NllOf(uint32_t target) const { return log_sum_exp_ - logits_[target]; }
  // Fills in position `position` of a run with these logits.
  void Score(absl::Span<const float> logits, uint32_t target, int64_t position,
             PositionScores& scores) const;

 private:
  absl::Span<const float> logits_;
  double log_sum_exp_;
  uint32_t top_;
};

// Means over the positions from `first_scored` on, unless said.
struct QualitySummary {
  double mean_nll = 0;
  double perplexity = 0;
  double all_mean_nll = 0;  // over every position
  // Against the reference, paired.
  double nll_delta_percent = 0;                 // of the reference's mean_nll
  double nll_delta_standard_error_percent = 0;  // over blocks of 128 positions
  double mean_kl = 0;
  double p99_kl = 0;
  double top1_agreement = 1;
};

// REQUIRES: 0 <= first_scored < positions, and the reference has as many.
QualitySummary SummarizeQuality(const PositionScores& scores,
                                absl::Span<const double> reference_nll, int64_t first_scored);

}  // namespace pagoda
