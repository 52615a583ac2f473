// What the arithmetic of decode adds to the error of a precision: the end of a text computed token
// by token, once with codes read by floats and once by integers where this machine has them
// (kernels/attention.h), both beside the exact reading.
//
// Protocol   as in quality_run.h; prefill up to the decoded positions, then one DecodeStep() each
//            with the text's own tokens, and RecomputePage() as the generator does
// Threads    one at a time; works with the pass's pool
// Errors     INVALID_ARGUMENT  decoded_tokens not in [1, positions - window - sinks]
//            CANCELLED         progress said stop
// Limits     the logits of all decoded positions are kept: 4 bytes * vocabulary each
// Cost       two forward passes, two decode steps for each decoded position
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/lab/quality_run.h"
#include "client/worker/kv_sequence.h"

namespace pagoda::lab {

struct DecodeComparison {
  QualitySummary floats;    // from the exact reading
  QualitySummary integers;  // from the exact reading
  QualitySummary between;   // integers from floats
};
// `kv` as in Reading.
absl::StatusOr<DecodeComparison> CompareDecode(ForwardPass& pass, const ExactReading& exact,
                                               const KvOptions& kv, int64_t decoded_tokens,
                                               Progress progress);

}  // namespace pagoda::lab
