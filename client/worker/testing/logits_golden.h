// Reads tests/golden/logits.bin: next-token distributions of the reference implementation, against
// which a forward pass is measured. The format is drawn in tests/golden/README.md.
//
//   for each text: run its tokens through the model in one sequence (positions from 0); at each
//   golden position p, KlDivergence(position, logits after token p) must be small
//
// Errors     NOT_FOUND  no such file; DATA_LOSS  cut or not of this format
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace pagoda {

// The distribution of the token after `position`.
struct GoldenPosition {
  uint32_t position = 0;
  float log_sum_exp = 0;            // of all logits: logit = log-probability + this
  float rest_mass = 0;              // probability of all tokens that are not in top_ids
  std::vector<uint16_t> top_ids;    // the likeliest first
  std::vector<float> top_logprobs;  // of each, natural logarithm
};

struct GoldenText {
  std::vector<uint32_t> tokens;
  std::vector<GoldenPosition> positions;  // ascending
};

struct LogitsGolden {
  std::string weights_revision;  // WeightsRevision() of the model file it was made with
  uint32_t vocab_size = 0;
  std::vector<GoldenText> texts;
};

absl::StatusOr<LogitsGolden> ReadLogitsGolden(const std::string& path);

// KL(golden || softmax(logits)) in nats, over the golden top tokens and one cell for the rest: a
// lower bound of the KL over the whole vocabulary. Never negative but for rounding (about 1e-7).
// REQUIRES: every top id is below logits.size().
double KlDivergence(const GoldenPosition& golden, absl::Span<const float> logits);

}  // namespace pagoda
