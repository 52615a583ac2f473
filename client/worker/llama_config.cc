#include "client/worker/llama_config.h"

#include <cmath>
#include <initializer_list>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "storage/base/digest.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

using Dims = std::vector<uint64_t>;

absl::StatusOr<uint32_t> ReadCount(const GgufFile& file, absl::string_view key, uint32_t min,
                                   uint32_t max) {
  const absl::StatusOr<uint64_t> value = file.GetUint(key);
  if (!value.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("model: ", value.status().message()));
  }
  if (*value < min || *value > max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model: %s is %d, expected %d to %d", key, *value, min, max));
  }
  return static_cast<uint32_t>(*value);
}

absl::StatusOr<uint32_t> ReadCountOr(const GgufFile& file, absl::string_view key, uint32_t min,
                                     uint32_t max, uint32_t fallback) {
  if (!file.Has(key)) return fallback;
  return ReadCount(file, key, min, max);
}

// A finite number above zero and at most `max`.
absl::StatusOr<double> ReadPositive(const GgufFile& file, absl::string_view key, double max) {
  const absl::StatusOr<double> value = file.GetFloat(key);
  if (!value.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("model: ", value.status().message()));
  }
  if (!std::isfinite(*value) || *value <= 0 || *value > max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model: %s is %g, expected above 0 and at most %g", key, *value, max));
  }
  return *value;
}

absl::Status ReadRope(const GgufFile& file, LlamaConfig* config) {
  config->rope_theta = 10000;
  if (file.Has("llama.rope.freq_base")) {
    PAGODA_ASSIGN_OR_RETURN(config->rope_theta, ReadPositive(file, "llama.rope.freq_base", 1e12));
  }
  PAGODA_ASSIGN_OR_RETURN(config->rope_dims, ReadCountOr(file, "llama.rope.dimension_count", 2,
                                                         config->head_dim, config->head_dim));
  if (config->rope_dims % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model: llama.rope.dimension_count is %d, expected an even number", config->rope_dims));
  }
  absl::string_view scaling = "none";
  if (file.Has("llama.rope.scaling.type")) {
    PAGODA_ASSIGN_OR_RETURN(scaling, file.GetString("llama.rope.scaling.type"));
  } else if (file.Has("llama.rope.scale_linear")) {  // the key's name in older files
    PAGODA_ASSIGN_OR_RETURN(config->rope_linear_factor,
                            ReadPositive(file, "llama.rope.scale_linear", 1e6));
  }
  if (scaling == "linear") {
    PAGODA_ASSIGN_OR_RETURN(config->rope_linear_factor,
                            ReadPositive(file, "llama.rope.scaling.factor", 1e6));
  } else if (scaling != "none") {
    return absl::UnimplementedError(
        absl::StrFormat("model: RoPE scaling \"%s\"; this worker does none and linear", scaling));
  }
  if (file.FindTensor("rope_freqs.weight") != nullptr) {
    return absl::UnimplementedError(
        "model: per-frequency RoPE factors (rope_freqs.weight); this worker does none and linear");
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const GgufFile& file, LlamaConfig* config) {
  PAGODA_ASSIGN_OR_RETURN(config->head_count,
                          ReadCount(file, "llama.attention.head_count", 1, 1024));
  PAGODA_ASSIGN_OR_RETURN(config->kv_head_count,
                          ReadCountOr(file, "llama.attention.head_count_kv", 1, config->head_count,
                                      config->head_count));
  if (config->head_count % config->kv_head_count != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model: %d query heads are not a multiple of %d key heads",
                        config->head_count, config->kv_head_count));
  }
  if (file.Has("llama.attention.key_length")) {
    PAGODA_ASSIGN_OR_RETURN(config->head_dim,
                            ReadCount(file, "llama.attention.key_length", 2, 1024));
  } else if (config->hidden_size % config->head_count == 0) {
    config->head_dim = config->hidden_size / config->head_count;
  }
  if (config->head_dim < 2 || config->head_dim > 1024 || config->head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model: hidden size %d over %d heads gives no even head size from 2 to 1024",
        config->hidden_size, config->head_count));
  }
  PAGODA_ASSIGN_OR_RETURN(
      const uint32_t value_dim,
      ReadCountOr(file, "llama.attention.value_length", 1, 1024, config->head_dim));
  if (value_dim != config->head_dim) {
    return absl::UnimplementedError(absl::StrFormat(
        "model: keys of %d and values of %d dimensions; this worker needs them equal",
        config->head_dim, value_dim));
  }
  return absl::OkStatus();
}

absl::flat_hash_map<std::string, Dims> ExpectedTensors(const LlamaConfig& config) {
  const Dims norm = {config.hidden_size};
  absl::flat_hash_map<std::string, Dims> expected = {
      {"token_embd.weight", {config.hidden_size, config.vocab_size}},
      {"output_norm.weight", norm},
  };
  if (!config.tied_embeddings) {
    expected["output.weight"] = {config.hidden_size, config.vocab_size};
  }
  for (uint32_t layer = 0; layer < config.layer_count; ++layer) {
    expected[LayerTensorName(layer, "attn_norm")] = norm;
    expected[LayerTensorName(layer, "attn_q")] = {config.hidden_size, config.query_size()};
    expected[LayerTensorName(layer, "attn_k")] = {config.hidden_size, config.kv_size()};
    expected[LayerTensorName(layer, "attn_v")] = {config.hidden_size, config.kv_size()};
    expected[LayerTensorName(layer, "attn_output")] = {config.query_size(), config.hidden_size};
    expected[LayerTensorName(layer, "ffn_norm")] = norm;
    expected[LayerTensorName(layer, "ffn_gate")] = {config.hidden_size, config.ffn_size};
    expected[LayerTensorName(layer, "ffn_up")] = {config.hidden_size, config.ffn_size};
    expected[LayerTensorName(layer, "ffn_down")] = {config.ffn_size, config.hidden_size};
  }
  return expected;
}

absl::Status CheckTensors(const GgufFile& file, const LlamaConfig& config) {
  const absl::flat_hash_map<std::string, Dims> expected = ExpectedTensors(config);
  for (const auto& [name, dims] : expected) {
    const GgufTensor* tensor = file.FindTensor(name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrFormat("model: tensor %s is missing", name));
    }
    if (tensor->dims != dims) {
      return absl::InvalidArgumentError(absl::StrFormat("model: tensor %s is [%s], expected [%s]",
                                                        name, absl::StrJoin(tensor->dims, ", "),
                                                        absl::StrJoin(dims, ", ")));
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!expected.contains(tensor.name)) {
      // Silently leaving out a bias would give fluent nonsense.
      return absl::UnimplementedError(absl::StrFormat(
          "model: tensor %s is not part of the plain Llama layer that this worker computes",
          tensor.name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string LayerTensorName(uint32_t layer, absl::string_view part) {
  return absl::StrCat("blk.", layer, ".", part, ".weight");
}

absl::StatusOr<LlamaConfig> ReadLlamaConfig(const GgufFile& file) {
  const absl::StatusOr<absl::string_view> architecture = file.GetString("general.architecture");
  if (!architecture.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("model: ", architecture.status().message()));
  }
  if (*architecture != "llama") {
    return absl::UnimplementedError(
        absl::StrFormat("model: architecture \"%s\"; this worker runs \"llama\"", *architecture));
  }
  PAGODA_ASSIGN_OR_RETURN(const uint32_t expert_count,
                          ReadCountOr(file, "llama.expert_count", 0, 65536, 0));
  if (expert_count != 0) {
    return absl::UnimplementedError(absl::StrFormat(
        "model: mixture of %d experts; this worker runs dense models", expert_count));
  }
  LlamaConfig config;
  config.name = "llama";
  if (file.Has("general.name")) {
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view name, file.GetString("general.name"));
    if (!name.empty()) config.name = std::string(name.substr(0, 256));
  }
  PAGODA_ASSIGN_OR_RETURN(config.layer_count, ReadCount(file, "llama.block_count", 1, 1024));
  PAGODA_ASSIGN_OR_RETURN(config.hidden_size,
                          ReadCount(file, "llama.embedding_length", 2, 1 << 20));
  PAGODA_ASSIGN_OR_RETURN(config.ffn_size,
                          ReadCount(file, "llama.feed_forward_length", 1, 1 << 22));
  PAGODA_ASSIGN_OR_RETURN(config.context_tokens,
                          ReadCount(file, "llama.context_length", 1, 1 << 27));
  PAGODA_ASSIGN_OR_RETURN(const double epsilon,
                          ReadPositive(file, "llama.attention.layer_norm_rms_epsilon", 1));
  config.rms_epsilon = static_cast<float>(epsilon);
  PAGODA_RETURN_IF_ERROR(ReadHeads(file, &config));
  PAGODA_RETURN_IF_ERROR(ReadRope(file, &config));

  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2 || embedding->dims[1] > 1 << 22) {
    return absl::InvalidArgumentError(
        "model: tensor token_embd.weight is missing or not a matrix of at most 4,194,304 rows");
  }
  config.vocab_size = static_cast<uint32_t>(embedding->dims[1]);
  PAGODA_ASSIGN_OR_RETURN(const uint32_t stated_vocab_size,
                          ReadCountOr(file, "llama.vocab_size", 1, 1 << 22, config.vocab_size));
  if (stated_vocab_size != config.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model: llama.vocab_size is %d, but token_embd.weight has %d rows",
                        stated_vocab_size, config.vocab_size));
  }
  config.tied_embeddings = file.FindTensor("output.weight") == nullptr;
  PAGODA_RETURN_IF_ERROR(CheckTensors(file, config));
  return config;
}

std::string WeightsRevision(const GgufFile& file) {
  const Sha256Digest digest = Sha256(AsText(file.bytes()));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

ModelSpec MakeModelSpec(const LlamaConfig& config, absl::string_view weights_revision) {
  ModelSpec spec;
  spec.model = config.name;
  spec.weights_revision = std::string(weights_revision);
  spec.groups = {LayerGroup{GroupKind::kFull, config.layer_count, config.kv_head_count,
                            config.head_dim, /*window_tokens=*/0}};
  spec.rope.style = RopeStyle::kHalfSplit;
  spec.rope.theta = config.rope_theta;
  spec.rope.rotary_dims = config.rope_dims;
  if (config.rope_linear_factor != 1) {
    spec.rope.scaling = absl::StrFormat("linear:%.17g", config.rope_linear_factor);
  }
  return spec;
}

}  // namespace pagoda
