#include "client/lab/decode_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace pagoda::lab {
namespace {

constexpr int64_t kPageTokens = ForwardPass::kPageTokens;

absl::Status AttendByFloats(int32_t, int32_t, const kernels::AttentionParams& params,
                            kernels::AttentionScratch& scratch) {
  kernels::AttentionParams floats = params;
  floats.float_codes = true;
  return kernels::AttentionCpu(floats, scratch);
}

// Positions [first, ids.size()) decoded one by one; their logits, [count][vocab_size].
absl::StatusOr<std::vector<float>> DecodeEnd(ForwardPass& pass, absl::Span<const uint32_t> ids,
                                             int64_t first, const KvOptions& kv,
                                             Progress progress) {
  const LlamaConfig& config = pass.model().config();
  KvOptions options = kv;
  options.token_count_max = config.context_tokens;
  PAGODA_ASSIGN_OR_RETURN(KvSequence sequence,
                          KvSequence::Make(pass.model().page_shape(), config.rope_theta, options));
  const auto total = static_cast<int64_t>(ids.size());
  const auto stopped = [&] {
    return absl::CancelledError(
        absl::StrFormat("lab: stopped after %d of %d tokens", sequence.token_count(), total));
  };
  while (sequence.token_count() < first) {
    const auto left = ids.subspan(sequence.token_count(), first - sequence.token_count());
    PAGODA_RETURN_IF_ERROR(pass.PrefillChunk(left, sequence).status());
    if (!progress(sequence.token_count(), total)) return stopped();
  }
  std::vector<float> logits((total - first) * config.vocab_size);
  for (int64_t position = first; position < total; ++position) {
    PAGODA_RETURN_IF_ERROR(pass.DecodeStep(ids[position], sequence));
    pass.LastLogits(
        absl::MakeSpan(logits).subspan((position - first) * config.vocab_size, config.vocab_size));
    if (sequence.token_count() % kPageTokens == 0) {
      const int64_t page_begin = sequence.token_count() - kPageTokens;
      PAGODA_RETURN_IF_ERROR(pass.RecomputePage(ids.subspan(page_begin, kPageTokens), sequence));
    }
    if (!progress(position + 1, total)) return stopped();
  }
  return logits;
}

// One run at the decoded positions beside a reference.
class DecodedScores {
 public:
  explicit DecodedScores(int64_t count) : scores_(count), reference_nll_(count) {}

  void Score(const ReferenceLogits& reference, absl::Span<const float> logits, uint32_t target,
             int64_t index) {
    reference_nll_[index] = reference.NllOf(target);
    reference.Score(logits, target, index, scores_);
  }
  QualitySummary Summary(int64_t first_scored) const {
    return SummarizeQuality(scores_, reference_nll_, first_scored);
  }

 private:
  PositionScores scores_;
  std::vector<double> reference_nll_;
};

}  // namespace

absl::StatusOr<DecodeComparison> CompareDecode(ForwardPass& pass, const ExactReading& exact,
                                               const KvOptions& kv, int64_t decoded_tokens,
                                               Progress progress) {
  const auto total = static_cast<int64_t>(exact.ids.size()) - 1;
  const int64_t most = total - exact.window_tokens - kernels::kSinkTokens;
  if (decoded_tokens < 1 || decoded_tokens > most) {
    return absl::InvalidArgumentError(
        absl::StrFormat("lab: %d tokens to decode, expected 1 to %d", decoded_tokens, most));
  }
  // Prefill ends at a page.
  const int64_t first = (total - decoded_tokens) / kPageTokens * kPageTokens;
  const auto ids = absl::MakeConstSpan(exact.ids).subspan(0, total);
  const auto half = [&progress](bool second) {
    return [&progress, second](int64_t done, int64_t of) {
      return progress(done + (second ? of : 0), 2 * of);
    };
  };
  std::vector<float> floats;
  {
    pass.set_attention(AttendByFloats);
    const absl::Cleanup reset = [&pass] { pass.set_attention(nullptr); };
    PAGODA_ASSIGN_OR_RETURN(floats, DecodeEnd(pass, ids, first, kv, half(false)));
  }
  PAGODA_ASSIGN_OR_RETURN(const std::vector<float> integers,
                          DecodeEnd(pass, ids, first, kv, half(true)));

  const int64_t size = pass.model().config().hidden_size;
  const int64_t vocab = pass.model().config().vocab_size;
  DecodedScores of_floats(total - first);
  DecodedScores of_integers(total - first);
  DecodedScores between(total - first);
  std::vector<float> exact_logits(vocab);
  for (int64_t position = first; position < total; ++position) {
    const int64_t index = position - first;
    const auto row = [&](const std::vector<float>& logits) {
      return absl::MakeConstSpan(logits).subspan(index * vocab, vocab);
    };
    pass.LogitsOf(absl::MakeConstSpan(exact.hidden).subspan(position * size, size),
                  absl::MakeSpan(exact_logits));
    const uint32_t target = exact.ids[position + 1];
    const ReferenceLogits reference(exact_logits);
    of_floats.Score(reference, row(floats), target, index);
    of_integers.Score(reference, row(integers), target, index);
    between.Score(ReferenceLogits(row(floats)), row(integers), target, index);
  }
  // Rounding down to a page may have reached positions that read no codes.
  const int64_t first_scored =
      std::max<int64_t>(0, exact.window_tokens + kernels::kSinkTokens - first);
  return DecodeComparison{.floats = of_floats.Summary(first_scored),
                          .integers = of_integers.Summary(first_scored),
                          .between = between.Summary(first_scored)};
}

}  // namespace pagoda::lab
