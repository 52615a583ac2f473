// Chooses the next token from logits: greedily, or at random with temperature and top-p. The same
// logits, options and seed give the same tokens on every machine and compiler: own generator, own
// exponential, no fused arithmetic.
//
// Shapes     logits [vocab_size] float32; a NaN counts as minus infinity
// Threads    one sampler, one thread at a time
// Errors     INVALID_ARGUMENT  an option out of range
// Cost       greedy: one pass. Sampling: one exponential per token and a heap of those that matter
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/worker/splitmix64.h"

namespace pagoda {

struct SamplerOptions {
  float temperature = 0;  // 0: greedy, the default because it can be checked; at most 100
  float top_p = 1;        // keep the likeliest tokens that together reach this; in (0, 1]
  uint64_t seed = 0;      // equal seeds, equal tokens

  absl::Status Validate() const;
};

// The index of the greatest logit, the lowest one among equals; 0 when none is a number.
// REQUIRES: !logits.empty().
uint32_t ArgMax(absl::Span<const float> logits);

class Sampler {
 public:
  static absl::StatusOr<Sampler> Create(const SamplerOptions& options);

  // REQUIRES: !logits.empty().
  uint32_t Next(absl::Span<const float> logits);

 private:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}

  const SamplerOptions options_;
  SplitMix64 random_;
  std::vector<std::pair<double, uint32_t>> heap_;  // scratch: (weight, token), kept to not allocate
};

}  // namespace pagoda
