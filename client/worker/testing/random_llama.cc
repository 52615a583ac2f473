#include "client/worker/testing/random_llama.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/worker/byte_alphabet.h"
#include "client/worker/dequantize.h"
#include "client/worker/float16.h"
#include "client/worker/llama_config.h"
#include "client/worker/splitmix64.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

// Where a block keeps its float16 factors, and the factors that give unit variance for uniform
// codes.
struct BlockScale {
  int d_offset;
  float d;
  int m_offset;  // -1: none
  float m;
};

BlockScale ScaleOf(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0:
      return {0, 1 / 4.6F, -1, 0};
    case TensorType::kQ4_1:
      return {0, 1 / 4.6F, 2, -7.5F / 4.6F};
    case TensorType::kQ5_0:
      return {0, 1 / 9.2F, -1, 0};
    case TensorType::kQ5_1:
      return {0, 1 / 9.2F, 2, -15.5F / 9.2F};
    case TensorType::kQ8_0:
      return {0, 1 / 74.0F, -1, 0};
    case TensorType::kQ6_K:
      return {208, 1 / (18.5F * 74.0F), -1, 0};
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBf16:
      break;
  }
  return {-1, 0, -1, 0};
}

void PutUint16(uint16_t value, std::string* block, size_t offset) {
  std::memcpy(block->data() + offset, &value, sizeof(value));
}

// Uniform in +-sqrt(3) * scale: standard deviation `scale`.
float RandomWeight(float scale, SplitMix64* random) {
  return static_cast<float>((random->Unit() * 2 - 1) * 1.7320508) * scale;
}

std::string RandomBlock(TensorType type, float scale, SplitMix64* random) {
  std::string block(TraitsOf(type).block_bytes, '\0');
  const float weight = RandomWeight(scale, random);
  if (type == TensorType::kF32) {
    std::memcpy(block.data(), &weight, sizeof(weight));
    return block;
  }
  if (type == TensorType::kF16) {
    PutUint16(FloatToHalf(weight), &block, 0);
    return block;
  }
  if (type == TensorType::kBf16) {
    PutUint16(static_cast<uint16_t>(std::bit_cast<uint32_t>(weight) >> 16), &block, 0);
    return block;
  }
  for (char& byte : block) byte = static_cast<char>(random->Next() >> 56);
  const BlockScale factors = ScaleOf(type);
  PutUint16(FloatToHalf(factors.d * scale), &block, factors.d_offset);
  if (factors.m_offset >= 0) PutUint16(FloatToHalf(factors.m * scale), &block, factors.m_offset);
  return block;
}

std::string RandomNorm(uint64_t size, uint64_t seed) {
  SplitMix64 random(seed);
  std::string data;
  for (uint64_t i = 0; i < size; ++i) {
    const float value = 1 + RandomWeight(0.1F, &random);
    data.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return data;
}

}  // namespace

std::string RandomWeights(TensorType type, uint64_t element_count, float scale, uint64_t seed) {
  SplitMix64 random(seed);
  const uint64_t bytes = EncodedBytes(type, element_count);
  std::string data;
  data.reserve(bytes);
  while (data.size() < bytes) data += RandomBlock(type, scale, &random);
  return data;
}

void AddByteTokenizer(uint32_t vocab_size, GgufWriter* writer) {
  const ByteAlphabet alphabet;
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(tokens.size(), 3);
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(alphabet.CharOf(byte));
  for (const char* merged : {"he", "ll", "hell"}) tokens.emplace_back(merged);
  PAGODA_CHECK(vocab_size >= tokens.size());
  types.resize(tokens.size(), 1);
  while (tokens.size() < vocab_size) {
    tokens.push_back(absl::StrCat("[unused", tokens.size(), "]"));
    types.push_back(5);
  }
  const std::vector<std::string> merges = {"h e", "l l", "he ll"};
  writer->SetString("tokenizer.ggml.model", "gpt2");
  writer->SetString("tokenizer.ggml.pre", "smollm");
  writer->SetStrings("tokenizer.ggml.tokens", tokens);
  writer->SetInts("tokenizer.ggml.token_type", types);
  writer->SetStrings("tokenizer.ggml.merges", merges);
  writer->SetUint32("tokenizer.ggml.bos_token_id", 1);
  writer->SetUint32("tokenizer.ggml.eos_token_id", 2);
}

void AddLlamaMetadata(const RandomLlamaOptions& options, GgufWriter* writer) {
  writer->SetString("general.architecture", "llama");
  writer->SetString("general.name", "random llama");
  writer->SetUint32("llama.block_count", options.layer_count);
  writer->SetUint32("llama.context_length", options.context_tokens);
  writer->SetUint32("llama.embedding_length", options.hidden_size);
  writer->SetUint32("llama.feed_forward_length", options.ffn_size);
  writer->SetUint32("llama.attention.head_count", options.head_count);
  writer->SetUint32("llama.attention.head_count_kv", options.kv_head_count);
  writer->SetUint32("llama.attention.key_length", options.head_dim);
  writer->SetUint32("llama.attention.value_length", options.head_dim);
  writer->SetUint32("llama.vocab_size", options.vocab_size);
  writer->SetFloat("llama.rope.freq_base", options.rope_theta);
  writer->SetFloat("llama.attention.layer_norm_rms_epsilon", options.rms_epsilon);
}

std::string RandomLlama(const RandomLlamaOptions& options) {
  GgufWriter writer;
  AddLlamaMetadata(options, &writer);
  AddByteTokenizer(options.vocab_size, &writer);
  uint64_t seed = options.seed * 1'000'003;
  const auto add_norm = [&](const std::string& name) {
    writer.AddTensor(name, {options.hidden_size}, TensorType::kF32,
                     RandomNorm(options.hidden_size, ++seed));
  };
  const auto add_matrix = [&](const std::string& name, uint64_t columns, uint64_t rows) {
    const float scale = 1 / std::sqrt(static_cast<float>(columns));
    writer.AddTensor(name, {columns, rows}, options.matrix_type,
                     RandomWeights(options.matrix_type, columns * rows, scale, ++seed));
  };
  const uint64_t query_size = uint64_t{options.head_count} * options.head_dim;
  const uint64_t kv_size = uint64_t{options.kv_head_count} * options.head_dim;
  add_matrix("token_embd.weight", options.hidden_size, options.vocab_size);
  for (uint32_t layer = 0; layer < options.layer_count; ++layer) {
    add_norm(LayerTensorName(layer, "attn_norm"));
    add_matrix(LayerTensorName(layer, "attn_q"), options.hidden_size, query_size);
    add_matrix(LayerTensorName(layer, "attn_k"), options.hidden_size, kv_size);
    add_matrix(LayerTensorName(layer, "attn_v"), options.hidden_size, kv_size);
    add_matrix(LayerTensorName(layer, "attn_output"), query_size, options.hidden_size);
    add_norm(LayerTensorName(layer, "ffn_norm"));
    add_matrix(LayerTensorName(layer, "ffn_gate"), options.hidden_size, options.ffn_size);
    add_matrix(LayerTensorName(layer, "ffn_up"), options.hidden_size, options.ffn_size);
    add_matrix(LayerTensorName(layer, "ffn_down"), options.ffn_size, options.hidden_size);
  }
  add_norm("output_norm.weight");
  if (!options.tied_embeddings) {
    add_matrix("output.weight", options.hidden_size, options.vocab_size);
  }
  return writer.Finish();
}

}  // namespace pagoda
