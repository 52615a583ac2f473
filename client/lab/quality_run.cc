#include "client/lab/quality_run.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "client/lab/coded_attention.h"
#include "client/worker/kv_sequence.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda::lab {
namespace {

constexpr int64_t kPageTokens = ForwardPass::kPageTokens;

int64_t PositionCount(const ExactReading& exact) {
  return static_cast<int64_t>(exact.ids.size()) - 1;
}

absl::Status CheckReading(const ForwardPass& pass, const ExactReading& exact) {
  const LlamaConfig& config = pass.model().config();
  const int64_t least = exact.window_tokens + kernels::kSinkTokens + 2;
  const int64_t most = int64_t{config.context_tokens} + 1;
  const auto count = static_cast<int64_t>(exact.ids.size());
  if (exact.window_tokens < 0 || count < least || count > most) {
    return absl::InvalidArgumentError(
        absl::StrFormat("lab: %d tokens with a window of %d, expected %d to %d", count,
                        exact.window_tokens, least, most));
  }
  if (*std::max_element(exact.ids.begin(), exact.ids.end()) >= config.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("lab: a token outside the vocabulary of %d", config.vocab_size));
  }
  return absl::OkStatus();
}

// Runs the text chunk by chunk through a sequence of `precision` and hands every chunk's final
// hidden states, [count][hidden_size], to `on_chunk(begin, count, hidden)`.
template <typename OnChunk>
absl::Status ReadText(ForwardPass& pass, const ExactReading& exact, Precision precision,
                      Progress progress, OnChunk on_chunk) {
  const LlamaConfig& config = pass.model().config();
  PAGODA_ASSIGN_OR_RETURN(KvSequence sequence,
                          KvSequence::Make(pass.model().page_shape(), config.rope_theta,
                                           {.precision = precision,
                                            .window_tokens = exact.window_tokens,
                                            .token_count_max = config.context_tokens}));
  const int64_t total = PositionCount(exact);
  std::vector<float> hidden;
  for (int64_t begin = 0; begin < total;) {
    const auto left = absl::MakeConstSpan(exact.ids).subspan(begin, total - begin);
    PAGODA_ASSIGN_OR_RETURN(const int64_t count, pass.PrefillChunk(left, sequence));
    hidden.resize(count * config.hidden_size);
    pass.FinalHidden(0, count, absl::MakeSpan(hidden));
    on_chunk(begin, count, absl::MakeConstSpan(hidden));
    begin += count;
    if (!progress(begin, total)) {
      return absl::CancelledError(
          absl::StrFormat("lab: stopped after %d of %d tokens", begin, total));
    }
  }
  return absl::OkStatus();
}

// Scores runs of positions against the exact reading.
class Comparison {
 public:
  Comparison(ForwardPass& pass, const ExactReading& exact)
      : pass_(pass),
        exact_(exact),
        scores_(PositionCount(exact)),
        exact_nll_(PositionCount(exact)),
        exact_logits_(kPageTokens * vocab_size()),
        logits_(kPageTokens * vocab_size()) {}

  void Score(int64_t begin, int64_t count, absl::Span<const float> hidden) {
    const int64_t size = pass_.model().config().hidden_size;
    const int64_t vocab = vocab_size();
    for (int64_t row = 0; row < count; row += kPageTokens) {
      const int64_t rows = std::min(kPageTokens, count - row);
      const auto exact_hidden = absl::MakeConstSpan(exact_.hidden);
      pass_.LogitsOf(exact_hidden.subspan((begin + row) * size, rows * size),
                     absl::MakeSpan(exact_logits_).subspan(0, rows * vocab));
      pass_.LogitsOf(hidden.subspan(row * size, rows * size),
                     absl::MakeSpan(logits_).subspan(0, rows * vocab));
      pass_.pool().ParallelFor(rows, [&](int64_t i, int) {
        const int64_t position = begin + row + i;
        const uint32_t target = exact_.ids[position + 1];
        const ReferenceLogits reference(
            absl::MakeConstSpan(exact_logits_).subspan(i * vocab, vocab));
        exact_nll_[position] = reference.NllOf(target);
        reference.Score(absl::MakeConstSpan(logits_).subspan(i * vocab, vocab), target, position,
                        scores_);
      });
    }
  }

  QualitySummary Summary() const {
    return SummarizeQuality(scores_, exact_nll_, exact_.window_tokens + kernels::kSinkTokens);
  }

 private:
  int64_t vocab_size() const { return pass_.model().config().vocab_size; }

  ForwardPass& pass_;
  const ExactReading& exact_;
  PositionScores scores_;
  std::vector<double> exact_nll_;
  std::vector<float> exact_logits_;  // [kPageTokens][vocab_size]
  std::vector<float> logits_;
};

// Reads the text through `attention` (null: the product's) and compares.
absl::StatusOr<QualitySummary> Compare(ForwardPass& pass, const ExactReading& exact,
                                       Precision precision, ForwardPass::Attention attention,
                                       Progress progress) {
  pass.set_attention(std::move(attention));
  const absl::Cleanup reset = [&pass] { pass.set_attention(nullptr); };
  Comparison comparison(pass, exact);
  PAGODA_RETURN_IF_ERROR(
      ReadText(pass, exact, precision, progress,
               [&](int64_t begin, int64_t count, absl::Span<const float> hidden) {
                 comparison.Score(begin, count, hidden);
               }));
  return comparison.Summary();
}

}  // namespace

absl::StatusOr<ExactReading> ReadExactly(ForwardPass& pass, std::vector<uint32_t> ids,
                                         int64_t window_tokens, Progress progress) {
  ExactReading exact{std::move(ids), window_tokens, {}};
  PAGODA_RETURN_IF_ERROR(CheckReading(pass, exact));
  exact.hidden.reserve(PositionCount(exact) * pass.model().config().hidden_size);
  PAGODA_RETURN_IF_ERROR(ReadText(pass, exact, Precision::kRaw16, progress,
                                  [&](int64_t, int64_t, absl::Span<const float> hidden) {
                                    exact.hidden.insert(exact.hidden.end(), hidden.begin(),
                                                        hidden.end());
                                  }));
  return exact;
}

absl::StatusOr<QualitySummary> CompareCodec(ForwardPass& pass, const ExactReading& exact,
                                            const KvCodec& codec, Progress progress) {
  if (codec.product.has_value()) return Compare(pass, exact, *codec.product, nullptr, progress);
  if (pass.model().page_shape().head_dim > CodedAttention::kHeadDimMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "lab: codec %s on heads of %d channels, at most %d; q8 and q4 have no such limit",
        codec.name, pass.model().page_shape().head_dim, CodedAttention::kHeadDimMax));
  }
  CodedAttention coded(codec, pass.model().page_shape(), exact.window_tokens);
  return Compare(
      pass, exact, Precision::kRaw16,
      [&coded](int32_t layer, int32_t kv_head, const kernels::AttentionParams& params,
               kernels::AttentionScratch& scratch) {
        return coded.Attend(layer, kv_head, params, scratch);
      },
      progress);
}

absl::StatusOr<QualitySummary> ComparePlanes(ForwardPass& pass, const ExactReading& exact,
                                             const std::vector<LayerPlanes>& layers,
                                             Progress progress) {
  PAGODA_CHECK(layers.size() == pass.model().config().layer_count);
  return Compare(
      pass, exact, Precision::kQ8,
      [&layers](int32_t layer, int32_t, const kernels::AttentionParams& params,
                kernels::AttentionScratch& scratch) {
        return AttendWithPlanes(layers, layer, params, scratch);
      },
      progress);
}

}  // namespace pagoda::lab
