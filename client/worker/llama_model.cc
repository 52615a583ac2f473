#include "client/worker/llama_model.h"

#include "client/worker/dequantize.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

void ReadRow(const GgufTensor& tensor, uint64_t row, absl::Span<float> target) {
  Dequantize(tensor.type, EncodedRows(tensor, row, 1), target);
}

const GgufTensor& TensorOf(const GgufFile& file, absl::string_view name) {
  const GgufTensor* tensor = file.FindTensor(name);
  PAGODA_CHECK(tensor != nullptr);  // ReadLlamaConfig has seen them all
  return *tensor;
}

std::vector<float> ReadVector(const GgufTensor& tensor) {
  std::vector<float> values(tensor.element_count);
  Dequantize(tensor.type, tensor.data, absl::MakeSpan(values));
  return values;
}

// Where the file keeps the row of channel `row` of Q or K: within the rotating channels of a head
// it has (0, half, 1, half + 1, ...).
uint64_t RowInFile(const LlamaConfig& config, uint64_t row) {
  const uint64_t channel = row % config.head_dim;
  const uint64_t half = config.rope_dims / 2;
  if (channel >= config.rope_dims) return row;
  const uint64_t in_file = channel < half ? 2 * channel : 2 * (channel - half) + 1;
  return row - channel + in_file;
}

LlamaLayer ReadLayer(const GgufFile& file, const LlamaConfig& config, uint32_t layer,
                     ThreadPool& pool) {
  const auto tensor = [&](absl::string_view part) -> const GgufTensor& {
    return TensorOf(file, LayerTensorName(layer, part));
  };
  const GgufTensor& q = tensor("attn_q");
  const GgufTensor& k = tensor("attn_k");
  const GgufTensor& v = tensor("attn_v");
  const GgufTensor& attention_output = tensor("attn_output");
  const GgufTensor& gate = tensor("ffn_gate");
  const GgufTensor& up = tensor("ffn_up");
  const GgufTensor& down = tensor("ffn_down");
  const int64_t q_size = config.query_size();
  const int64_t kv_size = config.kv_size();
  const int64_t ffn_size = config.ffn_size;
  const auto qkv_row = [&](int64_t row, absl::Span<float> target) {
    if (row < q_size) return ReadRow(q, RowInFile(config, row), target);
    row -= q_size;
    if (row < kv_size) return ReadRow(k, RowInFile(config, row), target);
    ReadRow(v, row - kv_size, target);
  };
  const auto gate_up_row = [&](int64_t row, absl::Span<float> target) {
    row < ffn_size ? ReadRow(gate, row, target) : ReadRow(up, row - ffn_size, target);
  };
  const auto output_row = [&](int64_t row, absl::Span<float> target) {
    ReadRow(attention_output, row, target);
  };
  const auto down_row = [&](int64_t row, absl::Span<float> target) { ReadRow(down, row, target); };
  const int64_t hidden = config.hidden_size;
  return {.attention_norm = ReadVector(tensor("attn_norm")),
          .ffn_norm = ReadVector(tensor("ffn_norm")),
          .qkv = Linear(hidden, q_size + 2 * kv_size, Linear::Order::kPlain, qkv_row, pool),
          .attention_output = Linear(q_size, hidden, Linear::Order::kPlain, output_row, pool),
          .gate_up = Linear(hidden, 2 * ffn_size, Linear::Order::kPaired, gate_up_row, pool),
          .down = Linear(ffn_size, hidden, Linear::Order::kPlain, down_row, pool)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<LlamaModel>> LlamaModel::Load(const GgufFile& file,
                                                             ThreadPool& pool) {
  PAGODA_ASSIGN_OR_RETURN(const LlamaConfig config, ReadLlamaConfig(file));
  auto model = std::unique_ptr<LlamaModel>(new LlamaModel(file, config));
  model->page_shape_ = {.layer_count = static_cast<int32_t>(config.layer_count),
                        .head_count = static_cast<int32_t>(config.kv_head_count),
                        .head_dim = static_cast<int32_t>(config.head_dim),
                        .page_tokens = kPageTokens};
  PAGODA_RETURN_IF_ERROR(kernels::ValidatePageShape(model->page_shape_));
  model->LoadWeights(pool);
  return model;
}

void LlamaModel::LoadWeights(ThreadPool& pool) {
  embedding_ = &TensorOf(file_, "token_embd.weight");
  output_norm_ = ReadVector(TensorOf(file_, "output_norm.weight"));
  layers_.reserve(config_.layer_count);
  for (uint32_t layer = 0; layer < config_.layer_count; ++layer) {
    layers_.push_back(ReadLayer(file_, config_, layer, pool));
  }
  const GgufTensor& output =
      config_.tied_embeddings ? *embedding_ : TensorOf(file_, "output.weight");
  output_ = std::make_unique<Linear>(
      config_.hidden_size, config_.vocab_size, Linear::Order::kPlain,
      [&](int64_t row, absl::Span<float> target) { ReadRow(output, row, target); }, pool);
}

void LlamaModel::Embed(uint32_t id, absl::Span<float> row) const { ReadRow(*embedding_, id, row); }

}  // namespace pagoda
