// The shape of a Llama-family model, read from a GGUF's metadata and checked against its tensors,
// so that the forward pass may index without looking.
//
// Threads    plain data and pure functions
// Errors     INVALID_ARGUMENT  a key is missing, out of range, or a tensor is missing or misshapen
//            UNIMPLEMENTED     another architecture, mixture of experts, biases, RoPE scaling other
//                              than none or linear, keys and values of different width
// Source     llama.cpp's LLM_ARCH_LLAMA: metadata keys and tensor names
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/worker/gguf.h"
#include "storage/base/model_spec.h"

namespace pagoda {

struct LlamaConfig {
  std::string name;  // general.name; "llama" when the file has none
  uint32_t layer_count = 0;
  uint32_t head_count = 0;  // query heads, a multiple of kv_head_count
  uint32_t kv_head_count = 0;
  uint32_t head_dim = 0;  // even
  uint32_t hidden_size = 0;
  uint32_t ffn_size = 0;
  uint32_t vocab_size = 0;
  uint32_t context_tokens = 0;  // trained context length
  float rms_epsilon = 0;
  double rope_theta = 0;
  uint32_t rope_dims = 0;         // leading dimensions of a head that rotate; even, <= head_dim
  double rope_linear_factor = 1;  // positions are divided by this
  bool tied_embeddings = false;   // no output.weight: the embedding is the output matrix too

  uint32_t query_size() const { return head_count * head_dim; }
  uint32_t kv_size() const { return kv_head_count * head_dim; }
  bool operator==(const LlamaConfig&) const = default;
};

// Reads and validates. Every tensor of the model is present with its shape, and there is no tensor
// that the forward pass would ignore.
absl::StatusOr<LlamaConfig> ReadLlamaConfig(const GgufFile& file);

// "blk.3.attn_q.weight" for (3, "attn_q").
std::string LayerTensorName(uint32_t layer, absl::string_view part);

// SHA-256 of the whole file in hex: what tells two sets of weights apart. Cost: reads it all.
std::string WeightsRevision(const GgufFile& file);

// One FULL group; half-split RoPE, which is what K looks like once the loader has undone the row
// permutation that GGUF converters apply to Q and K. kv_dtype is ModelSpec's default, bf16.
ModelSpec MakeModelSpec(const LlamaConfig& config, absl::string_view weights_revision);

}  // namespace pagoda
