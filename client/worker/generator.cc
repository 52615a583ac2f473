#include "client/worker/generator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int64_t kPageTokens = ForwardPass::kPageTokens;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Tells the cache that the request is over, however it ends.
class FinishAtExit {
 public:
  explicit FinishAtExit(PrefixCache* cache) : cache_(cache) {}
  ~FinishAtExit() {
    if (cache_ != nullptr) cache_->Finish();
  }
  FinishAtExit(const FinishAtExit&) = delete;
  FinishAtExit& operator=(const FinishAtExit&) = delete;

 private:
  PrefixCache* const cache_;
};

}  // namespace

absl::StatusOr<GenerateResult> Generator::Generate(absl::Span<const uint32_t> prompt_ids,
                                                   const GenerateOptions& options,
                                                   absl::FunctionRef<bool(uint32_t)> on_token) {
  const double start = Now();
  const LlamaConfig& config = pass_.model().config();
  if (prompt_ids.empty() || prompt_ids.size() >= config.context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("generate: prompt of %d tokens, expected 1 to %d", prompt_ids.size(),
                        int64_t{config.context_tokens} - 1));
  }
  if (options.new_tokens_max < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("generate: %d new tokens, expected at least 1", options.new_tokens_max));
  }
  PAGODA_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(options.sampling));
  const auto make_sequence = [&] {
    return KvSequence::Make(pass_.model().page_shape(), config.rope_theta,
                            {.precision = options.precision,
                             .window_tokens = options.window_tokens,
                             .token_count_max = config.context_tokens,
                             .k_lo_layers = options.k_lo_layers});
  };
  PAGODA_ASSIGN_OR_RETURN(KvSequence sequence, make_sequence());
  Request request = {.options = options,
                     .sequence = sequence,
                     .sampler = sampler,
                     .ids = {prompt_ids.begin(), prompt_ids.end()},
                     .logits = std::vector<float>(config.vocab_size)};
  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt_ids.size());
  const FinishAtExit finish(options.cache);
  absl::Status prefilled = LoadAndPrefill(request, options.load_by_layer, &result);
  // Declared after the sequence: what still comes ends before its memory does.
  if (!prefilled.ok() && result.hit.layers != nullptr) {
    // Pages were lost on their way, under what was computed over them.
    result.hit.layers.reset();  // nobody writes into the sequence's memory any more
    options.cache->Finish();
    PAGODA_ASSIGN_OR_RETURN(sequence, make_sequence());
    prefilled = LoadAndPrefill(request, /*by_layer=*/false, &result);
  }
  PAGODA_RETURN_IF_ERROR(prefilled);
  PAGODA_RETURN_IF_ERROR(RunDecode(request, on_token, start, &result));
  result.kv_bytes_per_token =
      static_cast<double>(sequence.stored_bytes() + sequence.widened_bytes()) /
      static_cast<double>(sequence.token_count());
  result.raw16_bytes_per_token = static_cast<double>(sequence.raw16_bytes_per_token());
  return result;
}

absl::Status Generator::LoadAndPrefill(Request& request, bool by_layer, GenerateResult* result) {
  const double start = Now();
  const double waited = pass_.times().wait_seconds;
  PrefixCache* const cache = request.options.cache;
  result->hit = {};
  if (cache != nullptr) {
    const absl::Span<const uint32_t> ids = request.ids;
    result->hit =
        by_layer ? cache->LoadByLayer(ids, request.sequence) : cache->Load(ids, request.sequence);
  }
  const double loaded = Now();
  result->load_seconds += loaded - start;
  const absl::Status status = Prefill(request, result->hit.layers.get());
  result->prefill_seconds += Now() - loaded;
  result->wait_seconds += pass_.times().wait_seconds - waited;
  if (status.ok()) result->hit.layers.reset();
  return status;
}

absl::Status Generator::Prefill(Request& request, LayerSource* layers) {
  KvSequence& sequence = request.sequence;
  while (sequence.token_count() < static_cast<int64_t>(request.ids.size())) {
    const int64_t first_page = sequence.full_page_count();
    const absl::Span<const uint32_t> rest =
        absl::MakeConstSpan(request.ids).subspan(sequence.token_count());
    ForwardPass::LayerGate gate;
    if (layers != nullptr) gate = [layers](int32_t layer) { return layers->WaitLayer(layer); };
    PAGODA_RETURN_IF_ERROR(pass_.PrefillChunk(rest, sequence, gate).status());
    if (layers != nullptr) PAGODA_RETURN_IF_ERROR(layers->WaitAll());
    layers = nullptr;
    StorePages(first_page, request);
  }
  pass_.LastLogits(absl::MakeSpan(request.logits));
  return absl::OkStatus();
}

absl::Status Generator::Decode(uint32_t id, Request& request) {
  KvSequence& sequence = request.sequence;
  PAGODA_RETURN_IF_ERROR(pass_.DecodeStep(id, sequence));
  pass_.LastLogits(absl::MakeSpan(request.logits));
  if (sequence.token_count() % kPageTokens != 0) return absl::OkStatus();
  const int64_t page = sequence.full_page_count() - 1;
  const absl::Span<const uint32_t> page_ids =
      absl::MakeConstSpan(request.ids).subspan(page * kPageTokens, kPageTokens);
  PAGODA_RETURN_IF_ERROR(pass_.RecomputePage(page_ids, sequence));
  StorePages(page, request);
  return absl::OkStatus();
}

absl::Status Generator::RunDecode(Request& request, absl::FunctionRef<bool(uint32_t)> on_token,
                                  double start_seconds, GenerateResult* result) {
  const std::vector<uint32_t>& stop_ids = request.options.stop_ids;
  const int64_t context_tokens = pass_.model().config().context_tokens;
  double first_token_time = 0;
  int64_t decoded_count = 0;
  for (;;) {
    if (request.options.on_logits != nullptr) request.options.on_logits(request.logits);
    const uint32_t id = request.sampler.Next(request.logits);
    if (first_token_time == 0) {
      first_token_time = Now();
      result->ttft_seconds = first_token_time - start_seconds;
    }
    if (std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end()) {
      result->finish_reason = FinishReason::kStop;
      break;
    }
    result->ids.push_back(id);
    request.ids.push_back(id);
    if (!on_token(id)) {
      result->finish_reason = FinishReason::kCallback;
      break;
    }
    const bool is_full = static_cast<int64_t>(request.ids.size()) > context_tokens - 1;
    if (is_full || static_cast<int64_t>(result->ids.size()) == request.options.new_tokens_max) {
      result->finish_reason = FinishReason::kLength;
      break;
    }
    PAGODA_RETURN_IF_ERROR(Decode(id, request));
    ++decoded_count;
  }
  const double seconds = Now() - first_token_time;
  if (decoded_count > 0 && seconds > 0) {
    result->decode_tokens_per_second = static_cast<double>(decoded_count) / seconds;
  }
  return absl::OkStatus();
}

void Generator::StorePages(int64_t first_page, Request& request) {
  PrefixCache* cache = request.options.cache;
  if (cache == nullptr) return;
  const KvSequence& sequence = request.sequence;
  for (int64_t page = first_page; page < sequence.full_page_count(); ++page) {
    cache->StorePage(sequence, page,
                     absl::MakeConstSpan(request.ids).subspan(page * kPageTokens, kPageTokens));
  }
  cache->Advance(sequence.token_count());
}

}  // namespace pagoda
