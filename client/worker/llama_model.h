// The weights of a Llama-family model in the form that the forward pass reads: float32, packed for
// matrix products, rows of Q and K in half-split RoPE order (GGUF converters interleave the pairs;
// loading undoes it). Computing with them is forward_pass.h.
//
// Threads    constant after Load(): any thread may read.
// Ownership  token embeddings stay in the file and are decoded row by row, so the bytes of a file
//            that came from GgufFile::FromBytes must outlive the model; a mapped file is kept.
// Errors     as ReadLlamaConfig; INVALID_ARGUMENT for a head size that pages cannot hold
// Cost       4 bytes of memory per weight, the output matrix included even when it is tied to the
//            embeddings; loading decodes every weight once
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/worker/gguf.h"
#include "client/worker/linear.h"
#include "client/worker/llama_config.h"
#include "client/worker/thread_pool.h"
#include "kernels/page_layout.h"

namespace pagoda {

struct LlamaLayer {
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> ffn_norm;        // [hidden]
  Linear qkv;                         // hidden -> query heads, key heads, value heads
  Linear attention_output;            // query heads -> hidden
  Linear gate_up;                     // hidden -> gate, up; paired
  Linear down;                        // ffn -> hidden
};

class LlamaModel {
 public:
  static constexpr int32_t kPageTokens = 64;  // the grid of prefill and the size of its pages

  static absl::StatusOr<std::unique_ptr<LlamaModel>> Load(const GgufFile& file, ThreadPool& pool);

  const LlamaConfig& config() const { return config_; }
  const kernels::PageShape& page_shape() const { return page_shape_; }
  const LlamaLayer& layer(int64_t index) const { return layers_[index]; }
  absl::Span<const float> output_norm() const { return output_norm_; }
  const Linear& output() const { return *output_; }  // hidden -> vocabulary

  // The embedding of a token: `row` has hidden_size floats. REQUIRES: id < vocab_size.
  void Embed(uint32_t id, absl::Span<float> row) const;

 private:
  LlamaModel(const GgufFile& file, const LlamaConfig& config) : file_(file), config_(config) {}
  void LoadWeights(ThreadPool& pool);

  GgufFile file_;
  LlamaConfig config_;
  kernels::PageShape page_shape_;
  const GgufTensor* embedding_ = nullptr;
  std::vector<LlamaLayer> layers_;
  std::vector<float> output_norm_;
  std::unique_ptr<Linear> output_;
};

}  // namespace pagoda
