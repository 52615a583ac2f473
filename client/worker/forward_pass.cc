#include "client/worker/forward_pass.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "client/worker/elementwise.h"
#include "kernels/merge_states.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int64_t kRowsPerTask = 16;     // of the row-wise parts
constexpr int64_t kAttentionRows = 32;   // queries of one attention task of prefill
constexpr int64_t kPartitionPages = 16;  // of one attention task of decode
constexpr int64_t kFloatAlign = 16;      // floats of a cache line

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t TaskCount(int64_t count, int64_t per_task) { return (count + per_task - 1) / per_task; }

}  // namespace

ForwardPass::ForwardPass(const LlamaModel& model, ThreadPool& pool)
    : model_(model),
      config_(model.config()),
      pool_(pool),
      qkv_size_(config_.query_size() + int64_t{2} * config_.kv_size()),
      softmax_scale_(1 / std::sqrt(static_cast<float>(config_.head_dim))),
      rope_(config_),
      scratch_(pool.thread_count()) {
  ReserveRows(kChunkPagesMax * kPageTokens);
  for (Scratch& scratch : scratch_) {
    scratch.gate_up = kernels::AlignedBuffer(kPageTokens * Linear::kSliceWidthMax *
                                             static_cast<int64_t>(sizeof(float)));
  }
}

// What the last call left in the activations is lost when they grow.
void ForwardPass::ReserveRows(int64_t rows) {
  if (rows <= reserved_rows_) return;
  reserved_rows_ = rows;
  const int64_t hidden_floats = AlignUp(rows * config_.hidden_size, kFloatAlign);
  const int64_t qkv_floats = AlignUp(rows * qkv_size_, kFloatAlign);
  const int64_t attended_floats = AlignUp(rows * config_.query_size(), kFloatAlign);
  const int64_t activated_floats = AlignUp(rows * config_.ffn_size, kFloatAlign);
  memory_ =
      kernels::AlignedBuffer((2 * hidden_floats + qkv_floats + attended_floats + activated_floats) *
                             static_cast<int64_t>(sizeof(float)));
  hidden_ = reinterpret_cast<float*>(memory_.data());
  normed_ = hidden_ + hidden_floats;
  qkv_ = normed_ + hidden_floats;
  attended_ = qkv_ + qkv_floats;
  activated_ = attended_ + attended_floats;
}

std::string ForwardPass::BackendName() {
  return absl::StrFormat("%s, simd %s", LinearBackendName(), SimdTargetName());
}

absl::Status ForwardPass::CheckIds(absl::Span<const uint32_t> ids,
                                   const KvSequence& sequence) const {
  if (sequence.shape() != model_.page_shape()) {
    return absl::FailedPreconditionError("forward pass: the sequence is of another shape");
  }
  for (const uint32_t id : ids) {
    if (id >= config_.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("forward pass: token %d in a vocabulary of %d", id, config_.vocab_size));
    }
  }
  const int64_t token_count = sequence.token_count() + static_cast<int64_t>(ids.size());
  if (token_count > sequence.options().token_count_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("forward pass: %d tokens in a sequence of at most %d", token_count,
                        sequence.options().token_count_max));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ForwardPass::PrefillChunk(absl::Span<const uint32_t> ids,
                                                  KvSequence& sequence, const LayerGate& gate) {
  PAGODA_CHECK(!ids.empty());
  PAGODA_CHECK(sequence.token_count() % kPageTokens == 0);
  const int64_t pages_max = gate == nullptr ? kChunkPagesMax : kGatedChunkPagesMax;
  ids = ids.subspan(0, sequence.ChunkPagesMax(pages_max) * kPageTokens);
  PAGODA_RETURN_IF_ERROR(CheckIds(ids, sequence));
  const auto count = static_cast<int64_t>(ids.size());
  const Rows rows = {.first_position = sequence.token_count(),
                     .count = count,
                     .padded_count = AlignUp(count, kPageTokens)};
  ReserveRows(rows.padded_count);
  PAGODA_RETURN_IF_ERROR(Run(ids, sequence, rows, gate));
  return count;
}

absl::Status ForwardPass::DecodeStep(uint32_t id, KvSequence& sequence) {
  PAGODA_RETURN_IF_ERROR(CheckIds({id}, sequence));
  return Run({id}, sequence,
             {.first_position = sequence.token_count(), .count = 1, .padded_count = 1}, nullptr);
}

absl::Status ForwardPass::RecomputePage(absl::Span<const uint32_t> page_ids, KvSequence& sequence) {
  PAGODA_CHECK(static_cast<int64_t>(page_ids.size()) == kPageTokens);
  PAGODA_CHECK(sequence.token_count() >= kPageTokens);
  PAGODA_CHECK(sequence.token_count() % kPageTokens == 0);
  sequence.Rewind(sequence.token_count() - kPageTokens);
  return PrefillChunk(page_ids, sequence).status();
}

void ForwardPass::Lap(double* total) {
  const double now = Now();
  *total += now - lap_start_;
  lap_start_ = now;
}

absl::Status ForwardPass::Run(absl::Span<const uint32_t> ids, KvSequence& sequence,
                              const Rows& rows, const LayerGate& gate) {
  lap_start_ = Now();
  sequence.Prepare(rows.first_position / kPageTokens,
                   (rows.first_position + rows.count - 1) / kPageTokens, pool_);
  Lap(&times_.encode_seconds);
  rope_.GrowTo(rows.first_position + rows.padded_count);
  const int64_t hidden_size = config_.hidden_size;
  for (int64_t row = 0; row < rows.count; ++row) {
    model_.Embed(ids[row], absl::MakeSpan(hidden_ + row * hidden_size, hidden_size));
  }
  // Rows of padding start from zero: finite numbers in every layer, which no other row sees.
  std::fill(hidden_ + rows.count * hidden_size, hidden_ + rows.padded_count * hidden_size, 0.0F);
  for (int32_t layer = 0; layer < static_cast<int32_t>(config_.layer_count); ++layer) {
    PAGODA_RETURN_IF_ERROR(RunLayer(layer, rows, sequence, gate));
  }
  Lap(&times_.other_seconds);
  sequence.Advance(rows.first_position + rows.count);
  last_rows_ = rows;
  return absl::OkStatus();
}

absl::Status ForwardPass::RunLayer(int32_t layer, const Rows& rows, KvSequence& sequence,
                                   const LayerGate& gate) {
  const LlamaLayer& weights = model_.layer(layer);
  const int64_t hidden_size = config_.hidden_size;
  Normalize(rows, weights.attention_norm);
  Lap(&times_.other_seconds);
  weights.qkv.Apply({.x = normed_,
                     .x_stride = hidden_size,
                     .y = qkv_,
                     .y_stride = qkv_size_,
                     .row_count = rows.padded_count},
                    pool_);
  Lap(&times_.matrix_seconds);
  RotateAndStore(layer, rows, sequence);
  Lap(&times_.other_seconds);
  if (gate != nullptr) {
    PAGODA_RETURN_IF_ERROR(gate(layer));
    Lap(&times_.wait_seconds);
  }
  rows.decode() ? AttendDecode(layer, rows, sequence) : AttendPrefill(layer, rows, sequence);
  Lap(&times_.attention_seconds);
  weights.attention_output.Apply({.x = attended_,
                                  .x_stride = config_.query_size(),
                                  .y = hidden_,
                                  .y_stride = hidden_size,
                                  .row_count = rows.padded_count,
                                  .accumulate = true},
                                 pool_);
  Lap(&times_.matrix_seconds);
  Normalize(rows, weights.ffn_norm);
  Lap(&times_.other_seconds);
  FeedForward(weights, rows);
  Lap(&times_.matrix_seconds);
  return absl::OkStatus();
}

void ForwardPass::Normalize(const Rows& rows, absl::Span<const float> weight) {
  const int64_t hidden_size = config_.hidden_size;
  pool_.ParallelFor(TaskCount(rows.padded_count, kRowsPerTask), [&](int64_t task, int) {
    const int64_t end = std::min(rows.padded_count, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) {
      RmsNorm(hidden_ + row * hidden_size, weight.data(), hidden_size, config_.rms_epsilon,
              normed_ + row * hidden_size);
    }
  });
}

void ForwardPass::RotateAndStore(int32_t layer, const Rows& rows, KvSequence& sequence) {
  const int64_t head_dim = config_.head_dim;
  const int64_t rotated_heads = config_.head_count + config_.kv_head_count;
  pool_.ParallelFor(TaskCount(rows.padded_count, kRowsPerTask), [&](int64_t task, int) {
    const int64_t end = std::min(rows.padded_count, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) {
      const int64_t position = rows.first_position + row;
      float* q = qkv_ + row * qkv_size_;
      for (int64_t head = 0; head < rotated_heads; ++head) {
        RotateHalfSplit(rope_.cosines(position), rope_.sines(position), rope_.half_count(),
                        q + head * head_dim);
      }
      const float* k = q + config_.query_size();
      const float* v = k + config_.kv_size();
      const int64_t offset = position % kPageTokens * head_dim;
      for (int32_t head = 0; head < static_cast<int32_t>(config_.kv_head_count); ++head) {
        const KvSequence::RawRows target =
            sequence.MutableRows(position / kPageTokens, layer, head);
        RoundToBf16(k + head * head_dim, head_dim, target.k + offset);
        RoundToBf16(v + head * head_dim, head_dim, target.v + offset);
      }
    }
  });
}

kernels::AttentionParams ForwardPass::HeadParams(int64_t row, int32_t kv_head) const {
  const int64_t group_count = config_.head_count / config_.kv_head_count;
  const int64_t column = kv_head * group_count * config_.head_dim;
  kernels::AttentionParams params;
  params.q = qkv_ + row * qkv_size_ + column;
  params.q_stride = qkv_size_;
  params.out = attended_ + row * config_.query_size() + column;
  params.out_stride = config_.query_size();
  params.group_count = static_cast<int32_t>(group_count);
  params.head_dim = static_cast<int32_t>(config_.head_dim);
  params.page_tokens = kPageTokens;
  params.softmax_scale = softmax_scale_;
  return params;
}

void ForwardPass::Attend(int32_t layer, int32_t kv_head, const kernels::AttentionParams& params,
                         kernels::AttentionScratch& scratch) const {
  const absl::Status status = attention_ == nullptr ? kernels::AttentionCpu(params, scratch)
                                                    : attention_(layer, kv_head, params, scratch);
  PAGODA_CHECK(status.ok());
}

void ForwardPass::AttendPrefill(int32_t layer, const Rows& rows, const KvSequence& sequence) {
  const int64_t kv_heads = config_.kv_head_count;
  // The last rows see the most tokens: starting with them evens out the threads' ends.
  const int64_t block_count = rows.padded_count / kAttentionRows;
  pool_.ParallelFor(block_count * kv_heads, [&](int64_t task, int thread) {
    const int64_t row = (block_count - 1 - task / kv_heads) * kAttentionRows;
    const auto kv_head = static_cast<int32_t>(task % kv_heads);
    Scratch& scratch = scratch_[thread];
    const int64_t position = rows.first_position + row;
    const int64_t seen_in_page = position % kPageTokens + kAttentionRows;
    sequence.CollectTiles(position / kPageTokens, static_cast<int32_t>(seen_in_page), layer,
                          kv_head, &scratch.tiles);
    kernels::AttentionParams params = HeadParams(row, kv_head);
    params.query_count = kAttentionRows;
    params.first_position = position;
    params.pages = scratch.tiles;
    Attend(layer, kv_head, params, scratch.attention);
  });
}

void ForwardPass::AttendDecode(int32_t layer, const Rows& rows, const KvSequence& sequence) {
  const int64_t position = rows.first_position;
  const int64_t page_count = position / kPageTokens + 1;
  const int64_t partition_count = TaskCount(page_count, kPartitionPages);
  const int64_t kv_heads = config_.kv_head_count;
  const int64_t group_count = config_.head_count / config_.kv_head_count;
  const int64_t group_floats = group_count * config_.head_dim;
  partial_o_.resize(kv_heads * partition_count * group_floats);
  partial_lse2_.resize(kv_heads * partition_count * group_count);
  pool_.ParallelFor(kv_heads * partition_count, [&](int64_t task, int thread) {
    const auto kv_head = static_cast<int32_t>(task / partition_count);
    const int64_t first_page = task % partition_count * kPartitionPages;
    Scratch& scratch = scratch_[thread];
    sequence.CollectTiles(page_count - 1, static_cast<int32_t>(position % kPageTokens) + 1, layer,
                          kv_head, first_page, first_page + kPartitionPages, &scratch.tiles);
    kernels::AttentionParams params = HeadParams(0, kv_head);
    params.out = &partial_o_[task * group_floats];
    params.out_stride = group_floats;
    params.lse2 = &partial_lse2_[task * group_count];
    params.query_count = 1;
    params.first_position = position;
    params.pages = scratch.tiles;
    Attend(layer, kv_head, params, scratch.attention);
  });
  for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
    const int64_t first = kv_head * partition_count;
    const kernels::AttentionState merged = {.o = &partial_o_[first * group_floats],
                                            .lse2 = &partial_lse2_[first * group_count]};
    for (int64_t part = first + 1; part < first + partition_count; ++part) {
      kernels::MergeStatesCpu(
          merged,
          {.o = &partial_o_[part * group_floats], .lse2 = &partial_lse2_[part * group_count]},
          group_count, static_cast<int32_t>(config_.head_dim));
    }
    std::copy_n(merged.o, group_floats, attended_ + kv_head * group_floats);
  }
}

void ForwardPass::FeedForward(const LlamaLayer& layer, const Rows& rows) {
  const int64_t hidden_size = config_.hidden_size;
  const int64_t ffn_size = config_.ffn_size;
  const int64_t block_rows = std::min(rows.padded_count, kPageTokens);
  pool_.ParallelFor(layer.gate_up.slice_count(), [&](int64_t index, int thread) {
    const Linear::Slice& slice = layer.gate_up.slice(index);
    auto* gate_up = reinterpret_cast<float*>(scratch_[thread].gate_up.data());
    const int64_t half = slice.width / 2;
    for (int64_t block = 0; block < rows.padded_count; block += block_rows) {
      layer.gate_up.ApplySlice({.x = normed_ + block * hidden_size,
                                .x_stride = hidden_size,
                                .y = gate_up,
                                .y_stride = slice.width,
                                .row_count = block_rows},
                               index);
      for (int64_t row = 0; row < block_rows; ++row) {
        const float* gate = gate_up + row * slice.width;
        SiluMultiply(gate, gate + half, half, activated_ + (block + row) * ffn_size + slice.first);
      }
    }
  });
  layer.down.Apply({.x = activated_,
                    .x_stride = ffn_size,
                    .y = hidden_,
                    .y_stride = hidden_size,
                    .row_count = rows.padded_count,
                    .accumulate = true},
                   pool_);
}

void ForwardPass::FinalHidden(int64_t first_row, int64_t row_count,
                              absl::Span<float> hidden) const {
  PAGODA_CHECK(first_row + row_count <= last_rows_.count);
  PAGODA_CHECK(static_cast<int64_t>(hidden.size()) == row_count * config_.hidden_size);
  const int64_t size = config_.hidden_size;
  for (int64_t row = 0; row < row_count; ++row) {
    RmsNorm(hidden_ + (first_row + row) * size, model_.output_norm().data(), size,
            config_.rms_epsilon, &hidden[row * size]);
  }
}

void ForwardPass::LastLogits(absl::Span<float> logits) {
  PAGODA_CHECK(logits.size() == config_.vocab_size);
  lap_start_ = Now();
  FinalHidden(last_rows_.count - 1, 1, absl::MakeSpan(normed_, config_.hidden_size));
  model_.output().Apply({.x = normed_,
                         .x_stride = config_.hidden_size,
                         .y = logits.data(),
                         .y_stride = config_.vocab_size,
                         .row_count = 1},
                        pool_);
  Lap(&times_.logits_seconds);
}

void ForwardPass::LogitsOf(absl::Span<const float> hidden, absl::Span<float> logits) {
  const int64_t size = config_.hidden_size;
  const int64_t vocab = config_.vocab_size;
  const int64_t row_count = static_cast<int64_t>(hidden.size()) / size;
  PAGODA_CHECK(row_count >= 1 && row_count <= kPageTokens);
  PAGODA_CHECK(static_cast<int64_t>(logits.size()) == row_count * vocab);
  lap_start_ = Now();
  std::copy(hidden.begin(), hidden.end(), normed_);
  std::fill(normed_ + row_count * size, normed_ + kPageTokens * size, 0.0F);
  float* target = logits.data();
  if (row_count < kPageTokens) {
    padded_logits_.resize(kPageTokens * vocab);
    target = padded_logits_.data();
  }
  model_.output().Apply(
      {.x = normed_, .x_stride = size, .y = target, .y_stride = vocab, .row_count = kPageTokens},
      pool_);
  if (row_count < kPageTokens) std::copy_n(target, row_count * vocab, logits.data());
  Lap(&times_.logits_seconds);
}

}  // namespace pagoda
