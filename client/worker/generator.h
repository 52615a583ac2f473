// Text generation: prompt ids in, new ids out, K and V in a KvSequence that a PrefixCache may fill
// in part and learns from.
//
//   load -> prefill the rest -> sample -> decode, sample, decode, ...
//
// Same answer  without a cache, with a cold and with a warm one: in raw16 every logit is equal bit
//              for bit. For that, a page that fills up while decoding is computed again by prefill
//              in every mode (about 6 % of the decode time), so that a full page always holds what
//              prefill gives, whoever computes it.
// Threads      one request at a time.     Ownership  keeps a reference to the pass.
// Errors       INVALID_ARGUMENT  an empty prompt or one that leaves no room in the model's context;
//                                an id outside the vocabulary; options out of range
// Limits       prompt and answer together at most the model's context; generation ends there
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/worker/forward_pass.h"
#include "client/worker/kv_sequence.h"
#include "client/worker/prefix_cache.h"
#include "client/worker/sampler.h"

namespace pagoda {

struct GenerateOptions {
  int64_t new_tokens_max = 256;         // at least 1
  std::vector<uint32_t> stop_ids = {};  // generation ends before the first of them
  SamplerOptions sampling = {};
  Precision precision = Precision::kRaw16;  // of K and V beyond the window
  int64_t window_tokens = 256;              // most recent tokens read in raw16
  std::vector<int32_t> k_lo_layers = {};    // of the model's layer profile: KvOptions
  PrefixCache* cache = nullptr;             // null: everything is computed here
  bool load_by_layer = true;                // compute a layer while later ones travel
  // Sees the logits before each token is chosen: for evaluation.
  std::function<void(absl::Span<const float> logits)> on_logits = {};
};

enum class FinishReason { kStop, kLength, kCallback };

struct GenerateResult {
  std::vector<uint32_t> ids;  // without the stop id
  FinishReason finish_reason = FinishReason::kLength;
  PrefixHit hit;
  int64_t prompt_tokens = 0;
  double ttft_seconds = 0;              // from the call to the first token, loading included
  double load_seconds = 0;              // in PrefixCache::Load()
  double prefill_seconds = 0;           // computing the rest of the prompt, waiting included
  double wait_seconds = 0;              // of it, for layers on their way
  double decode_tokens_per_second = 0;  // after the first token; 0 when there was none
  double kv_bytes_per_token = 0;        // of the whole sequence as it stands at the end
  double raw16_bytes_per_token = 0;     // what raw16 without padding takes
};

class Generator {
 public:
  explicit Generator(ForwardPass& pass) : pass_(pass) {}

  // `on_token` sees each id as it is chosen; false ends the generation after that id.
  absl::StatusOr<GenerateResult> Generate(absl::Span<const uint32_t> prompt_ids,
                                          const GenerateOptions& options,
                                          absl::FunctionRef<bool(uint32_t id)> on_token);

 private:
  // One request on its way.
  struct Request {
    const GenerateOptions& options;
    KvSequence& sequence;
    Sampler& sampler;
    std::vector<uint32_t> ids;  // prompt, then what was generated
    std::vector<float> logits;
  };

  absl::Status LoadAndPrefill(Request& request, bool by_layer, GenerateResult* result);
  absl::Status Prefill(Request& request, LayerSource* layers);
  absl::Status Decode(uint32_t id, Request& request);
  absl::Status RunDecode(Request& request, absl::FunctionRef<bool(uint32_t id)> on_token,
                         double start_seconds, GenerateResult* result);
  void StorePages(int64_t first_page, Request& request);

  ForwardPass& pass_;
};

}  // namespace pagoda
