// A random Llama in memory with its pool and pass: what tests of the engine start from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/worker/forward_pass.h"
#include "client/worker/gguf.h"
#include "client/worker/llama_model.h"
#include "client/worker/splitmix64.h"
#include "client/worker/testing/random_llama.h"
#include "storage/base/check.h"

namespace pagoda {

class TinyModel {
 public:
  explicit TinyModel(const RandomLlamaOptions& options, int thread_count = 2)
      : bytes_(std::make_unique<std::string>(RandomLlama(options))), pool_(thread_count) {
    absl::StatusOr<GgufFile> file = GgufFile::FromBytes(AsBytes(*bytes_));
    PAGODA_CHECK(file.ok());
    file_ = *std::move(file);
    absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(file_, pool_);
    PAGODA_CHECK(model.ok());
    model_ = *std::move(model);
    pass_ = std::make_unique<ForwardPass>(*model_, pool_);
  }

  const GgufFile& file() const { return file_; }
  const LlamaModel& model() const { return *model_; }
  const LlamaConfig& config() const { return model_->config(); }
  ForwardPass& pass() { return *pass_; }

  KvSequence MakeSequence(Precision precision = Precision::kRaw16, int64_t window_tokens = 256) {
    absl::StatusOr<KvSequence> sequence =
        KvSequence::Make(model_->page_shape(), config().rope_theta,
                         {.precision = precision,
                          .window_tokens = window_tokens,
                          .token_count_max = config().context_tokens});
    PAGODA_CHECK(sequence.ok());
    return *std::move(sequence);
  }

  std::vector<uint32_t> RandomIds(int64_t count, uint64_t seed) const {
    SplitMix64 random(seed);
    std::vector<uint32_t> ids(count);
    for (uint32_t& id : ids) id = static_cast<uint32_t>(random.Next() % config().vocab_size);
    return ids;
  }

 private:
  std::unique_ptr<std::string> bytes_;
  ThreadPool pool_;
  GgufFile file_;
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<ForwardPass> pass_;
};

}  // namespace pagoda
