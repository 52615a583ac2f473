#include "client/worker/perplexity.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/worker/kv_sequence.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int64_t kPageTokens = ForwardPass::kPageTokens;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One precision on its way through the text.
struct Lane {
  KvSequence sequence;
  std::vector<float> hidden;  // [chunk][hidden_size], after the final norm
  std::vector<float> logits;  // [kPageTokens][vocab_size]
  PositionScores scores;
};

absl::StatusOr<std::vector<Lane>> MakeLanes(const ForwardPass& pass, int64_t position_count,
                                            const PerplexityOptions& options) {
  std::vector<Precision> precisions = {Precision::kRaw16};
  for (const Precision precision : options.precisions) {
    if (precision != Precision::kQ8 && precision != Precision::kQ4) {
      return absl::InvalidArgumentError(
          absl::StrFormat("perplexity: precision %s, expected q8 or q4", PrecisionName(precision)));
    }
    precisions.push_back(precision);
  }
  const LlamaConfig& config = pass.model().config();
  std::vector<Lane> lanes;
  for (const Precision precision : precisions) {
    PAGODA_ASSIGN_OR_RETURN(KvSequence sequence,
                            KvSequence::Make(pass.model().page_shape(), config.rope_theta,
                                             {.precision = precision,
                                              .window_tokens = options.window_tokens,
                                              .token_count_max = config.context_tokens}));
    lanes.push_back({.sequence = std::move(sequence),
                     .hidden = {},
                     .logits = std::vector<float>(kPageTokens * config.vocab_size),
                     .scores = PositionScores(position_count)});
  }
  return lanes;
}

// Fills in what position `position` has to say in every lane; its logits are row `row`.
void Compare(int64_t position, int64_t row, uint32_t target, int64_t vocab_size,
             std::vector<Lane>& lanes) {
  const auto logits_of = [&](const Lane& lane) {
    return absl::MakeConstSpan(lane.logits).subspan(row * vocab_size, vocab_size);
  };
  const ReferenceLogits reference(logits_of(lanes[0]));
  lanes[0].scores.nll[position] = reference.NllOf(target);
  for (size_t i = 1; i < lanes.size(); ++i) {
    reference.Score(logits_of(lanes[i]), target, position, lanes[i].scores);
  }
}

// Computes positions [begin, begin + count) in every lane and compares them.
absl::Status RunChunk(ForwardPass& pass, absl::Span<const uint32_t> ids, int64_t begin,
                      int64_t count, std::vector<Lane>& lanes) {
  const int64_t hidden_size = pass.model().config().hidden_size;
  const int64_t vocab_size = pass.model().config().vocab_size;
  for (Lane& lane : lanes) {
    PAGODA_RETURN_IF_ERROR(pass.PrefillChunk(ids.subspan(begin, count), lane.sequence).status());
    lane.hidden.resize(count * hidden_size);
    pass.FinalHidden(0, count, absl::MakeSpan(lane.hidden));
  }
  for (int64_t row = 0; row < count; row += kPageTokens) {
    const int64_t row_count = std::min(kPageTokens, count - row);
    for (Lane& lane : lanes) {
      pass.LogitsOf(
          absl::MakeConstSpan(lane.hidden).subspan(row * hidden_size, row_count * hidden_size),
          absl::MakeSpan(lane.logits).subspan(0, row_count * vocab_size));
    }
    pass.pool().ParallelFor(row_count, [&](int64_t i, int) {
      const int64_t position = begin + row + i;
      Compare(position, i, ids[position + 1], vocab_size, lanes);
    });
  }
  return absl::OkStatus();
}

PerplexityRow Summarize(const Lane& lane, const Lane& reference, int64_t first_scored) {
  PerplexityRow row;
  static_cast<QualitySummary&>(row) =
      SummarizeQuality(lane.scores, reference.scores.nll, first_scored);
  row.precision = lane.sequence.options().precision;
  row.kv_bytes_per_token = static_cast<double>(lane.sequence.stored_bytes()) /
                           static_cast<double>(lane.sequence.token_count());
  return row;
}

}  // namespace

absl::StatusOr<PerplexityReport> EvaluatePerplexity(
    ForwardPass& pass, absl::Span<const uint32_t> ids, const PerplexityOptions& options,
    absl::FunctionRef<bool(int64_t done, int64_t total)> progress) {
  const double start = Now();
  const LlamaConfig& config = pass.model().config();
  const int64_t position_count = static_cast<int64_t>(ids.size()) - 1;
  PAGODA_ASSIGN_OR_RETURN(std::vector<Lane> lanes,
                          MakeLanes(pass, std::max<int64_t>(0, position_count), options));
  const int64_t first_scored = options.window_tokens + kernels::kSinkTokens;
  if (position_count <= first_scored || position_count > config.context_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat("perplexity: %d tokens, expected %d to %d",
                                                      ids.size(), first_scored + 2,
                                                      int64_t{config.context_tokens} + 1));
  }
  if (*std::max_element(ids.begin(), ids.end()) >= config.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("perplexity: a token outside the vocabulary of %d", config.vocab_size));
  }
  int64_t chunk_pages = ForwardPass::kChunkPagesMax;
  for (const Lane& lane : lanes) chunk_pages = lane.sequence.ChunkPagesMax(chunk_pages);
  for (int64_t begin = 0; begin < position_count; begin += chunk_pages * kPageTokens) {
    const int64_t count = std::min(chunk_pages * kPageTokens, position_count - begin);
    PAGODA_RETURN_IF_ERROR(RunChunk(pass, ids, begin, count, lanes));
    if (!progress(begin + count, position_count)) {
      return absl::CancelledError(absl::StrFormat("perplexity: stopped after %d of %d tokens",
                                                  begin + count, position_count));
    }
  }
  PerplexityReport report;
  report.token_count = position_count;
  report.scored_count = position_count - first_scored;
  report.raw16_bytes_per_token = static_cast<double>(lanes[0].sequence.raw16_bytes_per_token());
  for (const Lane& lane : lanes) report.rows.push_back(Summarize(lane, lanes[0], first_scored));
  report.seconds = Now() - start;
  return report;
}

}  // namespace pagoda
