// What a lower precision of K and V costs in quality: teacher-forced evaluation of one text at
// raw16, q8 and q4 side by side, compared position by position.
//
// Protocol   no BOS; position t has read ids[0..t] and predicts ids[t + 1]. Every sequence computes
//            its own K and V over what it reads itself, so that errors add up through the layers as
//            in real use. Scored are the positions from window + kSinkTokens on: before them all
//            precisions read the same bytes. Differences are paired, position by position.
// Sequences  advance in lockstep, a chunk at a time, and only one block of logits per precision
//            exists at a time: memory does not grow with the text.
// Errors     INVALID_ARGUMENT  fewer than window + kSinkTokens + 2 ids, more than the limit, an id
//                              outside the vocabulary, options out of range
// Limits     the model's context
// Cost       three forward passes and three times the output matrix per token
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/worker/forward_pass.h"
#include "client/worker/paired_quality.h"
#include "storage/base/precision.h"

namespace pagoda {

struct PerplexityOptions {
  // Compared with raw16, which is always computed. Of kQ8 and kQ4.
  std::vector<Precision> precisions = {Precision::kQ8, Precision::kQ4};
  int64_t window_tokens = 128;
};

// One precision; differences are against raw16 and zero in its own row.
struct PerplexityRow : QualitySummary {
  Precision precision = Precision::kRaw16;
  // Of the whole sequence at its end.
  double kv_bytes_per_token = 0;
};

struct PerplexityReport {
  int64_t token_count = 0;   // positions computed: ids minus one
  int64_t scored_count = 0;  // of them scored
  double seconds = 0;
  double raw16_bytes_per_token = 0;  // without padding
  std::vector<PerplexityRow> rows;   // raw16 first, then as in the options
};

// `progress` hears of the positions done after each chunk; false ends with CANCELLED.
absl::StatusOr<PerplexityReport> EvaluatePerplexity(
    ForwardPass& pass, absl::Span<const uint32_t> ids, const PerplexityOptions& options,
    absl::FunctionRef<bool(int64_t done, int64_t total)> progress);

}  // namespace pagoda
