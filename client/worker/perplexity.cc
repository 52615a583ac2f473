#include "client/worker/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/worker/elementwise.h"
#include "client/worker/kv_sequence.h"
#include "client/worker/sampler.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int64_t kPageTokens = ForwardPass::kPageTokens;
constexpr int64_t kErrorBlock = 128;  // positions that count as one sample of the standard error

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One precision on its way through the text.
struct Lane {
  KvSequence sequence;
  std::vector<float> hidden;  // [chunk][hidden_size], after the final norm
  std::vector<float> logits;  // [kPageTokens][vocab_size]
  // One per position.
  std::vector<double> nll;
  std::vector<double> kl;
  std::vector<uint8_t> agrees;
};

double Mean(absl::Span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Of the mean of `values`, from the spread of the means of whole blocks; 0 for fewer than two.
double StandardError(absl::Span<const double> values) {
  std::vector<double> means;
  for (size_t begin = 0; begin + kErrorBlock <= values.size(); begin += kErrorBlock) {
    means.push_back(Mean(values.subspan(begin, kErrorBlock)));
  }
  if (means.size() < 2) return 0;
  const double mean = Mean(means);
  double squares = 0;
  for (const double value : means) squares += (value - mean) * (value - mean);
  const auto count = static_cast<double>(means.size());
  return std::sqrt(squares / (count - 1) / count);
}

double Percentile99(std::vector<double> values) {
  const auto at = values.begin() + static_cast<int64_t>(values.size() * 99 / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

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
                     .nll = std::vector<double>(position_count),
                     .kl = std::vector<double>(position_count),
                     .agrees = std::vector<uint8_t>(position_count, 1)});
  }
  return lanes;
}

// Fills in what position `position` has to say in every lane; its logits are row `row`.
void Compare(int64_t position, int64_t row, uint32_t target, int64_t vocab_size,
             std::vector<Lane>& lanes) {
  const float* reference = &lanes[0].logits[row * vocab_size];
  const double reference_lse = LogSumExp(reference, vocab_size);
  const uint32_t reference_top = ArgMax(absl::MakeConstSpan(reference, vocab_size));
  for (Lane& lane : lanes) {
    const float* logits = &lane.logits[row * vocab_size];
    const bool is_reference = logits == reference;
    const double lse = is_reference ? reference_lse : LogSumExp(logits, vocab_size);
    lane.nll[position] = lse - logits[target];
    if (is_reference) continue;
    lane.kl[position] = KlDivergence(reference, reference_lse, logits, lse, vocab_size);
    lane.agrees[position] = ArgMax(absl::MakeConstSpan(logits, vocab_size)) == reference_top;
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
  const absl::Span<const double> nll = absl::MakeConstSpan(lane.nll).subspan(first_scored);
  const absl::Span<const double> kl = absl::MakeConstSpan(lane.kl).subspan(first_scored);
  std::vector<double> delta(nll.begin(), nll.end());
  for (size_t i = 0; i < delta.size(); ++i) delta[i] -= reference.nll[first_scored + i];
  const double reference_nll = Mean(absl::MakeConstSpan(reference.nll).subspan(first_scored));
  const int64_t agreeing =
      std::count(lane.agrees.begin() + first_scored, lane.agrees.end(), uint8_t{1});
  PerplexityRow row;
  row.precision = lane.sequence.options().precision;
  row.mean_nll = Mean(nll);
  row.perplexity = std::exp(row.mean_nll);
  row.all_mean_nll = Mean(lane.nll);
  row.nll_delta_percent = 100 * Mean(delta) / reference_nll;
  row.nll_delta_standard_error_percent = 100 * StandardError(delta) / reference_nll;
  row.mean_kl = Mean(kl);
  row.p99_kl = Percentile99({kl.begin(), kl.end()});
  row.top1_agreement = static_cast<double>(agreeing) / static_cast<double>(kl.size());
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
