// A GGUF of a Llama of any shape with random weights and a byte-level vocabulary: a whole model for
// tests, in memory and in milliseconds. Its text is noise; its shapes and bytes are what counts.
#pragma once

#include <cstdint>
#include <string>

#include "client/worker/testing/gguf_writer.h"

namespace pagoda {

struct RandomLlamaOptions {
  uint32_t layer_count = 2;
  uint32_t head_count = 4;
  uint32_t kv_head_count = 2;
  uint32_t head_dim = 16;
  uint32_t hidden_size = 64;
  uint32_t ffn_size = 96;
  uint32_t vocab_size = 320;  // at least 262: 3 specials, 256 bytes, 3 merged tokens
  uint32_t context_tokens = 512;
  float rope_theta = 10000;
  float rms_epsilon = 1e-5F;
  TensorType matrix_type = TensorType::kF32;  // norms are always F32; rows must be whole blocks
  bool tied_embeddings = true;
  uint64_t seed = 1;
};

// Encoded bytes of `element_count` random weights, mean near 0, standard deviation near `scale`.
// REQUIRES: a whole number of blocks.
std::string RandomWeights(TensorType type, uint64_t element_count, float scale, uint64_t seed);

// The metadata of a tokenizer: <|endoftext|>, <|im_start|>, <|im_end|>, the 256 bytes, "he", "ll",
// "hell" with their merges, then unused tokens up to `vocab_size`.
void AddByteTokenizer(uint32_t vocab_size, GgufWriter* writer);

// The metadata without tensors and tokenizer.
void AddLlamaMetadata(const RandomLlamaOptions& options, GgufWriter* writer);

std::string RandomLlama(const RandomLlamaOptions& options);

}  // namespace pagoda
