// One text, read once exactly and then once for each way of keeping K and V: how far the answers
// move. The exact reading is kept as hidden states, 80 times smaller than the logits that are
// computed from them again for each comparison.
//
// Protocol   as in client/worker/perplexity.h: teacher forced, no BOS, every run computes its own K
//            and V over what it reads; scored from the position window + sinks on.
// Threads    one at a time; works with the pass's pool
// Errors     INVALID_ARGUMENT  fewer than window + sinks + 2 ids, more than the model's context
//                              plus one, an id outside the vocabulary; a codec that is not the
//                              product's on heads of more than 128 channels
//            CANCELLED         progress said stop
// Cost       one forward pass, and per comparison another and two output matrices per token
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/lab/kv_codec.h"
#include "client/lab/layer_planes.h"
#include "client/worker/forward_pass.h"
#include "client/worker/paired_quality.h"

namespace pagoda::lab {

// Hears of the positions done; false stops.
using Progress = absl::FunctionRef<bool(int64_t done, int64_t total)>;

struct ExactReading {
  std::vector<uint32_t> ids;
  int64_t window_tokens = 0;
  std::vector<float> hidden;  // [ids - 1][hidden_size], after the final norm
};
absl::StatusOr<ExactReading> ReadExactly(ForwardPass& pass, std::vector<uint32_t> ids,
                                         int64_t window_tokens, Progress progress);

absl::StatusOr<QualitySummary> CompareCodec(ForwardPass& pass, const ExactReading& exact,
                                            const KvCodec& codec, Progress progress);
// The product's planes, chosen for each layer. REQUIRES: one entry for each layer.
absl::StatusOr<QualitySummary> ComparePlanes(ForwardPass& pass, const ExactReading& exact,
                                             const std::vector<LayerPlanes>& layers,
                                             Progress progress);

}  // namespace pagoda::lab
