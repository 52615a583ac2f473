// A model ready to answer: file, weights, tokenizer, chat format and forward pass in one place, as
// every program that runs the reference worker needs them.
//
// Threads    Generate() from one thread at a time.   Ownership  owns everything it loads
// Errors     those of the parts, each naming the file: see gguf.h, llama_config.h, tokenizer.h
// Cost       loading decodes every weight to float32: about 1.5 s and 0.7 GB for 135M parameters
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/worker/chat_prompt.h"
#include "client/worker/generator.h"
#include "client/worker/gguf.h"
#include "client/worker/llama_model.h"
#include "client/worker/tokenizer.h"
#include "storage/base/model_spec.h"

namespace pagoda {

struct EngineOptions {
  std::string model_path;  // empty: the installed model (model_path.h)
  int thread_count = 0;    // 0: as many as the machine has, at most 16
};

class Engine {
 public:
  // `on_progress` hears in words what begins: "reading model FILE", ...; may be null.
  static absl::StatusOr<std::unique_ptr<Engine>> Load(
      const EngineOptions& options,
      const std::function<void(absl::string_view step)>& on_progress = nullptr);

  const std::string& model_path() const { return model_path_; }
  const ModelSpec& model_spec() const { return model_spec_; }
  const LlamaConfig& config() const { return model_->config(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatPrompt& chat() const { return *chat_; }
  ForwardPass& pass() { return *pass_; }
  // Where an answer ends: the end of text, and the end of a turn in the chat format.
  const std::vector<uint32_t>& stop_ids() const { return stop_ids_; }
  // Of the arithmetic that makes K and V on this machine; see BackendTagOf in proto/wire.h.
  const std::string& backend() const { return backend_; }

  // The user's turn in the chat format; plain text where the model has none.
  std::vector<uint32_t> EncodeChat(absl::string_view text) const;

  absl::StatusOr<GenerateResult> Generate(
      absl::Span<const uint32_t> prompt_ids, const GenerateOptions& options,
      absl::FunctionRef<bool(uint32_t id)> on_token = [](uint32_t) { return true; });

 private:
  explicit Engine(GgufFile file) : file_(std::move(file)) {}

  std::string model_path_;
  GgufFile file_;
  ModelSpec model_spec_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatPrompt> chat_;
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<ForwardPass> pass_;
  std::vector<uint32_t> stop_ids_;
  std::string backend_;
};

}  // namespace pagoda
