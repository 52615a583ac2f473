// One text, read once exactly and then once for each way of keeping K and V: how far the answers
// move. The exact reading is kept as hidden states, 80 times smaller than the logits that are
// computed from them again for each comparison. What a reading costs is measured on the way.
//
// Protocol   as in client/worker/perplexity.h: teacher forced, no BOS, every run computes its own K
//            and V over what it reads; scored from the position window + sinks on, and not before
//            what a prefix cache answered for.
// Threads    one at a time; works with the pass's pool
// Units      seconds, bytes, tokens; NLL in nats
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
#include "client/worker/prefix_cache.h"

namespace pagoda::lab {

// Hears of the positions done; false stops.
using Progress = absl::FunctionRef<bool(int64_t done, int64_t total)>;

// How one reading keeps K and V.
struct Reading {
  KvOptions kv;                                // token_count_max is the model's context
  ForwardPass::Attention attention = nullptr;  // null: the product's
  PrefixCache* cache = nullptr;                // loads what it has and is shown every page
  int64_t decode_tokens = 64;                  // decoded after the text, for their speed; may be 0
};

struct ReadingCost {
  double bytes_per_token = 0;           // of the whole sequence once the next token's page is there
  int64_t peak_bytes = 0;               // KvSequence::peak_bytes()
  double ttft_seconds = 0;              // loading, prefill of all positions, one row of logits
  double decode_tokens_per_second = 0;  // after them, greedy; 0: none were
  int64_t hit_tokens = 0;               // that the cache had
};

struct ExactReading {
  std::vector<uint32_t> ids;
  int64_t window_tokens = 0;
  std::vector<float> hidden;  // [ids - 1][hidden_size], after the final norm
  ReadingCost cost;
};
absl::StatusOr<ExactReading> ReadExactly(ForwardPass& pass, std::vector<uint32_t> ids,
                                         int64_t window_tokens, Progress progress);

// Mean NLL over scored positions [begin, end), and that of the exact reading.
struct PositionWindow {
  int64_t begin = 0;
  int64_t end = 0;
  double nll = 0;
  double exact_nll = 0;
};
constexpr int64_t kPositionWindowTokens = 512;

struct ReadingResult {
  QualitySummary quality;
  std::vector<PositionWindow> windows;  // of kPositionWindowTokens, the first and last cut short
  ReadingCost cost;
};
// Reads the ids and shows their pages to `reading.cache`; nothing is compared.
absl::Status ReadInto(ForwardPass& pass, absl::Span<const uint32_t> ids, const Reading& reading,
                      Progress progress);
// `reading` may have another window than the exact reading; scored are the same positions.
absl::StatusOr<ReadingResult> CompareReading(ForwardPass& pass, const ExactReading& exact,
                                             const Reading& reading, Progress progress);
// Beyond that window through a codec of the laboratory, which stores and decodes nothing: no cost.
// REQUIRES: a codec with round trips.
absl::StatusOr<ReadingResult> CompareCoded(ForwardPass& pass, const ExactReading& exact,
                                           const KvCodec& codec, int64_t window_tokens,
                                           Progress progress);
// The exact reading beside itself: no differences.
ReadingResult ResultOf(ForwardPass& pass, const ExactReading& exact);

absl::StatusOr<QualitySummary> CompareCodec(ForwardPass& pass, const ExactReading& exact,
                                            const KvCodec& codec, Progress progress);
// The product's planes, chosen for each layer. REQUIRES: one entry for each layer.
absl::StatusOr<QualitySummary> ComparePlanes(ForwardPass& pass, const ExactReading& exact,
                                             const std::vector<LayerPlanes>& layers,
                                             Progress progress);

}  // namespace pagoda::lab
