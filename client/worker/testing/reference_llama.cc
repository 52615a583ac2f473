#include "client/worker/testing/reference_llama.h"

#include <cmath>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "client/worker/dequantize.h"
#include "kernels/float16.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

using Vector = std::vector<double>;

class Reference {
 public:
  Reference(const GgufFile& file, const LlamaConfig& config) : file_(file), config_(config) {}

  Vector Embedding(uint32_t id) {
    const std::vector<float>& all = Tensor("token_embd.weight");
    const auto first = all.begin() + static_cast<int64_t>(id) * config_.hidden_size;
    return {first, first + config_.hidden_size};
  }

  Vector Multiply(const std::string& name, const Vector& x) {
    const std::vector<float>& weights = Tensor(name);
    Vector y(weights.size() / x.size());
    for (size_t row = 0; row < y.size(); ++row) {
      for (size_t i = 0; i < x.size(); ++i) y[row] += weights[row * x.size() + i] * x[i];
    }
    return y;
  }

  Vector Norm(const std::string& name, const Vector& x) {
    const std::vector<float>& weight = Tensor(name);
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.rms_epsilon);
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
    return y;
  }

  // In the file's order the pairs of a head are neighbours.
  void Rotate(int64_t position, Vector& heads) const {
    for (size_t head = 0; head < heads.size(); head += config_.head_dim) {
      for (uint32_t i = 0; i < config_.rope_dims; i += 2) {
        const double angle = static_cast<double>(position) / config_.rope_linear_factor *
                             std::pow(config_.rope_theta, -double{1} * i / config_.rope_dims);
        const double a = heads[head + i];
        const double b = heads[head + i + 1];
        heads[head + i] = a * std::cos(angle) - b * std::sin(angle);
        heads[head + i + 1] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }

  static void RoundToBf16(Vector& values) {
    for (double& value : values) {
      value = kernels::FloatFromBf16(kernels::Bf16FromFloat(static_cast<float>(value)));
    }
  }

  // q attends to all of `keys` and `values`, one per position.
  Vector Attend(const Vector& q, const std::vector<Vector>& keys,
                const std::vector<Vector>& values) const {
    Vector out(q.size());
    const uint32_t dim = config_.head_dim;
    for (uint32_t head = 0; head < config_.head_count; ++head) {
      const uint32_t kv_head = head / (config_.head_count / config_.kv_head_count);
      Vector weights(keys.size());
      double total = 0;
      for (size_t t = 0; t < keys.size(); ++t) {
        double score = 0;
        for (uint32_t i = 0; i < dim; ++i) score += q[head * dim + i] * keys[t][kv_head * dim + i];
        weights[t] = std::exp(score / std::sqrt(double{1} * dim));
        total += weights[t];
      }
      for (size_t t = 0; t < keys.size(); ++t) {
        for (uint32_t i = 0; i < dim; ++i) {
          out[head * dim + i] += weights[t] / total * values[t][kv_head * dim + i];
        }
      }
    }
    return out;
  }

 private:
  const std::vector<float>& Tensor(const std::string& name) {
    std::vector<float>& values = tensors_[name];
    if (values.empty()) {
      const GgufTensor* tensor = file_.FindTensor(name);
      PAGODA_CHECK(tensor != nullptr);
      values.resize(tensor->element_count);
      Dequantize(tensor->type, tensor->data, absl::MakeSpan(values));
    }
    return values;
  }

  const GgufFile& file_;
  const LlamaConfig& config_;
  absl::flat_hash_map<std::string, std::vector<float>> tensors_;
};

void Add(const Vector& from, Vector& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

}  // namespace

std::vector<double> ReferenceLogits(const GgufFile& file, const LlamaConfig& config,
                                    absl::Span<const uint32_t> ids) {
  Reference reference(file, config);
  const std::string output = config.tied_embeddings ? "token_embd.weight" : "output.weight";
  std::vector<std::vector<Vector>> keys(config.layer_count);
  std::vector<std::vector<Vector>> values(config.layer_count);
  std::vector<double> logits;
  for (size_t position = 0; position < ids.size(); ++position) {
    Vector hidden = reference.Embedding(ids[position]);
    for (uint32_t layer = 0; layer < config.layer_count; ++layer) {
      const auto name = [&](const char* part) { return LayerTensorName(layer, part); };
      Vector x = reference.Norm(name("attn_norm"), hidden);
      Vector q = reference.Multiply(name("attn_q"), x);
      Vector k = reference.Multiply(name("attn_k"), x);
      Vector v = reference.Multiply(name("attn_v"), x);
      reference.Rotate(static_cast<int64_t>(position), q);
      reference.Rotate(static_cast<int64_t>(position), k);
      Reference::RoundToBf16(k);
      Reference::RoundToBf16(v);
      keys[layer].push_back(k);
      values[layer].push_back(v);
      Add(reference.Multiply(name("attn_output"), reference.Attend(q, keys[layer], values[layer])),
          hidden);
      x = reference.Norm(name("ffn_norm"), hidden);
      Vector gate = reference.Multiply(name("ffn_gate"), x);
      const Vector up = reference.Multiply(name("ffn_up"), x);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      Add(reference.Multiply(name("ffn_down"), gate), hidden);
    }
    const Vector row = reference.Multiply(output, reference.Norm("output_norm.weight", hidden));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

}  // namespace pagoda
