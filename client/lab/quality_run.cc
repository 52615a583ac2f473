#include "client/lab/quality_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "client/lab/coded_attention.h"
#include "client/worker/kv_sequence.h"
#include "client/worker/sampler.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda::lab {
namespace {

constexpr int64_t kPageTokens = ForwardPass::kPageTokens;

int64_t PositionCount(const ExactReading& exact) {
  return static_cast<int64_t>(exact.ids.size()) - 1;
}
absl::Span<const uint32_t> InputsOf(const ExactReading& exact) {
  return absl::MakeConstSpan(exact.ids).subspan(0, PositionCount(exact));
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

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One reading of a text on its way.
class TextReader {
 public:
  TextReader(ForwardPass& pass, absl::Span<const uint32_t> ids, const Reading& reading,
             KvSequence sequence)
      : pass_(pass),
        ids_(ids),
        cache_(reading.cache),
        decode_tokens_(reading.decode_tokens),
        sequence_(std::move(sequence)) {}

  // Hands every chunk's final hidden states, [count][hidden_size], to
  // `on_chunk(begin, count, hidden)`, then decodes a little to see how fast that is.
  template <typename OnChunk>
  absl::StatusOr<ReadingCost> Run(Progress progress, OnChunk on_chunk) {
    const int64_t hidden_size = pass_.model().config().hidden_size;
    const auto total = static_cast<int64_t>(ids_.size());
    Load();
    std::vector<float> hidden;
    for (int64_t begin = sequence_.token_count(); begin < total;) {
      PAGODA_ASSIGN_OR_RETURN(const int64_t count, ReadChunk(begin));
      hidden.resize(count * hidden_size);
      pass_.FinalHidden(0, count, absl::MakeSpan(hidden));
      on_chunk(begin, count, absl::MakeConstSpan(hidden));
      begin += count;
      if (!progress(begin, total)) {
        return absl::CancelledError(
            absl::StrFormat("lab: stopped after %d of %d tokens", begin, total));
      }
    }
    PAGODA_RETURN_IF_ERROR(Decode());
    return cost_;
  }

 private:
  void Load() {
    if (cache_ == nullptr) return;
    const double start = Now();
    cost_.hit_tokens = cache_->Load(ids_, sequence_).tokens;
    cost_.ttft_seconds += Now() - start;
  }

  absl::StatusOr<int64_t> ReadChunk(int64_t begin) {
    const double start = Now();
    const int64_t first_page = sequence_.full_page_count();
    PAGODA_ASSIGN_OR_RETURN(const int64_t count,
                            pass_.PrefillChunk(ids_.subspan(begin), sequence_));
    if (cache_ != nullptr) {
      for (int64_t page = first_page; page < sequence_.full_page_count(); ++page) {
        cache_->StorePage(sequence_, page, ids_.subspan(page * kPageTokens, kPageTokens));
      }
      cache_->Advance(sequence_.token_count());
    }
    cost_.ttft_seconds += Now() - start;
    return count;
  }

  absl::Status Decode() {
    std::vector<float> logits(pass_.model().config().vocab_size);
    double start = Now();
    pass_.LastLogits(absl::MakeSpan(logits));
    cost_.ttft_seconds += Now() - start;
    const int64_t room = sequence_.options().token_count_max - sequence_.token_count();
    // As the next token will find it, wherever the last chunk ended.
    const int64_t next_page = sequence_.full_page_count();
    if (room > 0) sequence_.Prepare(next_page, next_page, pass_.pool());
    cost_.bytes_per_token = static_cast<double>(sequence_.stored_bytes()) /
                            static_cast<double>(sequence_.token_count());
    cost_.peak_bytes = sequence_.peak_bytes();
    const int64_t count = std::min(decode_tokens_, room);
    if (count == 0) return absl::OkStatus();
    std::vector<uint32_t> ids(ids_.begin(), ids_.end());
    start = Now();
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(ArgMax(logits));
      PAGODA_RETURN_IF_ERROR(pass_.DecodeStep(ids.back(), sequence_));
      pass_.LastLogits(absl::MakeSpan(logits));
      if (sequence_.token_count() % kPageTokens != 0) continue;
      const auto page_ids = absl::MakeConstSpan(ids).last(kPageTokens);
      PAGODA_RETURN_IF_ERROR(pass_.RecomputePage(page_ids, sequence_));
    }
    cost_.decode_tokens_per_second = static_cast<double>(count) / (Now() - start);
    return absl::OkStatus();
  }

  ForwardPass& pass_;
  const absl::Span<const uint32_t> ids_;
  PrefixCache* const cache_;
  const int64_t decode_tokens_;
  KvSequence sequence_;
  ReadingCost cost_;
};

template <typename OnChunk>
absl::StatusOr<ReadingCost> ReadText(ForwardPass& pass, absl::Span<const uint32_t> ids,
                                     const Reading& reading, Progress progress, OnChunk on_chunk) {
  const LlamaConfig& config = pass.model().config();
  KvOptions kv = reading.kv;
  kv.token_count_max = config.context_tokens;
  PAGODA_ASSIGN_OR_RETURN(KvSequence sequence,
                          KvSequence::Make(pass.model().page_shape(), config.rope_theta, kv));
  pass.set_attention(reading.attention);
  const absl::Cleanup reset = [&pass, &reading] {
    pass.set_attention(nullptr);
    if (reading.cache != nullptr) reading.cache->Finish();
  };
  return TextReader(pass, ids, reading, std::move(sequence)).Run(progress, on_chunk);
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

  // REQUIRES: every position from `first_scored` on was scored.
  QualitySummary Summary(int64_t first_scored) const {
    return SummarizeQuality(scores_, exact_nll_, first_scored);
  }
  std::vector<PositionWindow> Windows(int64_t first_scored) const {
    std::vector<PositionWindow> windows;
    for (int64_t begin = first_scored; begin < PositionCount(exact_);) {
      PositionWindow window = {.begin = begin};
      window.end =
          std::min(PositionCount(exact_),
                   begin / kPositionWindowTokens * kPositionWindowTokens + kPositionWindowTokens);
      for (int64_t i = begin; i < window.end; ++i) {
        window.nll += scores_.nll[i] / static_cast<double>(window.end - begin);
        window.exact_nll += exact_nll_[i] / static_cast<double>(window.end - begin);
      }
      windows.push_back(window);
      begin = window.end;
    }
    return windows;
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

}  // namespace

absl::StatusOr<ExactReading> ReadExactly(ForwardPass& pass, std::vector<uint32_t> ids,
                                         int64_t window_tokens, Progress progress) {
  ExactReading exact{std::move(ids), window_tokens, {}, {}};
  PAGODA_RETURN_IF_ERROR(CheckReading(pass, exact));
  exact.hidden.reserve(PositionCount(exact) * pass.model().config().hidden_size);
  PAGODA_ASSIGN_OR_RETURN(
      exact.cost, ReadText(pass, InputsOf(exact), {.kv = {.window_tokens = window_tokens}},
                           progress, [&](int64_t, int64_t, absl::Span<const float> hidden) {
                             exact.hidden.insert(exact.hidden.end(), hidden.begin(), hidden.end());
                           }));
  return exact;
}

absl::Status ReadInto(ForwardPass& pass, absl::Span<const uint32_t> ids, const Reading& reading,
                      Progress progress) {
  return ReadText(pass, ids, reading, progress, [](int64_t, int64_t, absl::Span<const float>) {})
      .status();
}

absl::StatusOr<ReadingResult> CompareReading(ForwardPass& pass, const ExactReading& exact,
                                             const Reading& reading, Progress progress) {
  Comparison comparison(pass, exact);
  ReadingResult result;
  PAGODA_ASSIGN_OR_RETURN(
      result.cost, ReadText(pass, InputsOf(exact), reading, progress,
                            [&](int64_t begin, int64_t count, absl::Span<const float> hidden) {
                              comparison.Score(begin, count, hidden);
                            }));
  const int64_t first_scored =
      std::max(exact.window_tokens + kernels::kSinkTokens, result.cost.hit_tokens);
  result.quality = comparison.Summary(first_scored);
  result.windows = comparison.Windows(first_scored);
  return result;
}

ReadingResult ResultOf(ForwardPass& pass, const ExactReading& exact) {
  Comparison comparison(pass, exact);
  comparison.Score(0, PositionCount(exact), exact.hidden);
  const int64_t first_scored = exact.window_tokens + kernels::kSinkTokens;
  return {.quality = comparison.Summary(first_scored),
          .windows = comparison.Windows(first_scored),
          .cost = exact.cost};
}

absl::StatusOr<ReadingResult> CompareCoded(ForwardPass& pass, const ExactReading& exact,
                                           const KvCodec& codec, int64_t window_tokens,
                                           Progress progress) {
  const kernels::PageShape& shape = pass.model().page_shape();
  if (shape.head_dim > CodedAttention::kHeadDimMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "lab: codec %s on heads of %d channels, at most %d; q8 to q2 have no such limit",
        codec.name, shape.head_dim, CodedAttention::kHeadDimMax));
  }
  CodedAttention coded(codec, shape, window_tokens);
  const Reading reading = {
      .kv = {.window_tokens = window_tokens},
      .attention =
          [&coded](int32_t layer, int32_t kv_head, const kernels::AttentionParams& params,
                   kernels::AttentionScratch& scratch) {
            return coded.Attend(layer, kv_head, params, scratch);
          },
      .decode_tokens = 0};
  PAGODA_ASSIGN_OR_RETURN(ReadingResult result, CompareReading(pass, exact, reading, progress));
  result.cost = {};
  return result;
}

absl::StatusOr<QualitySummary> CompareCodec(ForwardPass& pass, const ExactReading& exact,
                                            const KvCodec& codec, Progress progress) {
  absl::StatusOr<ReadingResult> result;
  if (codec.product.has_value()) {
    const Reading reading = {
        .kv = {.precision = *codec.product, .window_tokens = exact.window_tokens},
        .decode_tokens = 0};
    result = CompareReading(pass, exact, reading, progress);
  } else {
    result = CompareCoded(pass, exact, codec, exact.window_tokens, progress);
  }
  PAGODA_RETURN_IF_ERROR(result.status());
  return result->quality;
}

absl::StatusOr<QualitySummary> ComparePlanes(ForwardPass& pass, const ExactReading& exact,
                                             const std::vector<LayerPlanes>& layers,
                                             Progress progress) {
  PAGODA_CHECK(layers.size() == pass.model().config().layer_count);
  const Reading reading = {
      .kv = {.precision = Precision::kQ8, .window_tokens = exact.window_tokens},
      .attention =
          [&layers](int32_t layer, int32_t, const kernels::AttentionParams& params,
                    kernels::AttentionScratch& scratch) {
            return AttendWithPlanes(layers, layer, params, scratch);
          },
      .decode_tokens = 0};
  PAGODA_ASSIGN_OR_RETURN(const ReadingResult result,
                          CompareReading(pass, exact, reading, progress));
  return result.quality;
}

}  // namespace pagoda::lab
