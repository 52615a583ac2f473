// The forward pass of a Llama-family model: token ids in, K and V into a KvSequence, logits out.
// Prefill computes whole chunks, decode one token.
//
// Grid       prefill starts at page boundaries and runs on blocks of one page of rows, the last one
//            padded. A row's K, V and logits are a function of the tokens up to it and of what it
//            reads (KvSequence), bit for bit: not of the chunk it stands in, of where a cache hit
//            ended, or of the thread count. Decode has its own arithmetic (one row), so K and V
//            that decode wrote are provisional: once its page is full, RecomputePage() replaces
//            them by those of prefill.
// Shapes     logits [rows][vocab_size] float
// Threads    one at a time; works with the threads of its pool. Several passes may share a model.
// Ownership  keeps references to the model and the pool.
// Errors     INVALID_ARGUMENT     a token id outside the vocabulary; more tokens than the sequence
//                                 may hold. Nothing is changed.
//            FAILED_PRECONDITION  the sequence is of another shape
// Cost       2 flops per weight and token, and attention; memory for one chunk, taken once
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/worker/kv_sequence.h"
#include "client/worker/llama_model.h"
#include "client/worker/rope_table.h"
#include "client/worker/thread_pool.h"
#include "kernels/aligned_buffer.h"
#include "kernels/attention.h"

namespace pagoda {

// Where the time of a pass went, in seconds of wall clock.
struct ForwardTimes {
  double matrix_seconds = 0;  // matrix products, SiLU included
  double attention_seconds = 0;
  double encode_seconds = 0;  // of pages that left the window
  double logits_seconds = 0;
  double wait_seconds = 0;   // for layers on their way
  double other_seconds = 0;  // norms, RoPE, embeddings
};

class ForwardPass {
 public:
  static constexpr int64_t kPageTokens = LlamaModel::kPageTokens;
  static constexpr int64_t kChunkPagesMax = 4;
  // Of a chunk whose layers are waited for: the more rows, the more of the wait they fill.
  static constexpr int64_t kGatedChunkPagesMax = 16;

  ForwardPass(const LlamaModel& model, ThreadPool& pool);

  const LlamaModel& model() const { return model_; }
  ThreadPool& pool() { return pool_; }

  // Stands in for kernels::AttentionCpu, with its contract: measurements read the pages in other
  // forms (client/lab). Called by the pool's threads at once. Null, the default: AttentionCpu.
  using Attention = std::function<absl::Status(int32_t layer, int32_t kv_head,
                                               const kernels::AttentionParams& params,
                                               kernels::AttentionScratch& scratch)>;
  void set_attention(Attention attention) { attention_ = std::move(attention); }

  // Says when K and V of earlier pages may be read at a layer, and waits until then.
  using LayerGate = std::function<absl::Status(int32_t layer)>;

  // Computes the leading ids, as many as one chunk takes, and returns how many. Their hidden states
  // stay until the next call. REQUIRES: ids not empty, sequence at a page boundary.
  // With a gate it is called once a layer, in order; where it fails, so does this, and the sequence
  // must not be used any more.
  absl::StatusOr<int64_t> PrefillChunk(absl::Span<const uint32_t> ids, KvSequence& sequence,
                                       const LayerGate& gate = nullptr);
  // Computes one token after those of the sequence, at any position.
  absl::Status DecodeStep(uint32_t id, KvSequence& sequence);
  // Computes the last page of a sequence again by prefill. REQUIRES: token_count() is a multiple of
  // a page, and page_ids are the tokens of that last page.
  absl::Status RecomputePage(absl::Span<const uint32_t> page_ids, KvSequence& sequence);

  // Logits after the last token of the last call, by one-row products.
  void LastLogits(absl::Span<float> logits);
  // Hidden states after the final norm of rows [first_row, first_row + row_count) of the last
  // chunk, [row_count][hidden_size].
  void FinalHidden(int64_t first_row, int64_t row_count, absl::Span<float> hidden) const;
  // Logits of up to kPageTokens final hidden states, by products of kPageTokens rows.
  void LogitsOf(absl::Span<const float> hidden, absl::Span<float> logits);

  const ForwardTimes& times() const { return times_; }

  // Which arithmetic this machine's K and V come from: PageHeader::backend_tag is a hash of it.
  // "onednn-2.6.3 avx512_core, simd AVX3".
  static std::string BackendName();

 private:
  // One chunk on its way through the layers.
  struct Rows {
    int64_t first_position = 0;
    int64_t count = 0;         // tokens
    int64_t padded_count = 0;  // rows of the products: 1 or a multiple of kPageTokens
    bool decode() const { return padded_count == 1; }
  };
  // Memory of one thread of the pool.
  struct Scratch {
    kernels::AttentionScratch attention;
    std::vector<kernels::PageTile> tiles;
    kernels::AlignedBuffer gate_up;  // [kPageTokens][slice width]
  };

  absl::Status CheckIds(absl::Span<const uint32_t> ids, const KvSequence& sequence) const;
  void ReserveRows(int64_t rows);
  absl::Status Run(absl::Span<const uint32_t> ids, KvSequence& sequence, const Rows& rows,
                   const LayerGate& gate);
  absl::Status RunLayer(int32_t layer, const Rows& rows, KvSequence& sequence,
                        const LayerGate& gate);
  void Normalize(const Rows& rows, absl::Span<const float> weight);
  void RotateAndStore(int32_t layer, const Rows& rows, KvSequence& sequence);
  void AttendPrefill(int32_t layer, const Rows& rows, const KvSequence& sequence);
  void AttendDecode(int32_t layer, const Rows& rows, const KvSequence& sequence);
  void FeedForward(const LlamaLayer& layer, const Rows& rows);
  kernels::AttentionParams HeadParams(int64_t row, int32_t kv_head) const;
  void Attend(int32_t layer, int32_t kv_head, const kernels::AttentionParams& params,
              kernels::AttentionScratch& scratch) const;
  void Lap(double* total);

  // Constant after construction.
  const LlamaModel& model_;
  const LlamaConfig& config_;
  ThreadPool& pool_;
  int64_t qkv_size_;
  float softmax_scale_;

  Attention attention_;
  RopeTable rope_;
  Rows last_rows_;
  ForwardTimes times_;
  double lap_start_ = 0;
  // [chunk rows][...] activations; each a region of one buffer.
  kernels::AlignedBuffer memory_;
  int64_t reserved_rows_ = 0;
  float* hidden_ = nullptr;
  float* normed_ = nullptr;
  float* qkv_ = nullptr;
  float* attended_ = nullptr;
  float* activated_ = nullptr;
  std::vector<Scratch> scratch_;     // one per thread
  std::vector<float> partial_o_;     // decode: [kv head][partition][group][head_dim]
  std::vector<float> partial_lse2_;  // decode: [kv head][partition][group]
  std::vector<float> padded_logits_;
};

}  // namespace pagoda
