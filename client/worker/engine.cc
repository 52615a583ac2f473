#include "client/worker/engine.h"

#include <hwy/targets.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/worker/llama_config.h"
#include "client/worker/model_path.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int kThreadCountMax = 16;  // beyond it a small model only waits for its own barriers

int ThreadCount(int asked) {
  if (asked > 0) return std::min(asked, ThreadPool::kThreadCountMax);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreadCountMax);
}

// The widest vectors the processor offers decide which code oneDNN and our kernels run.
std::string BackendName() {
  int64_t best = hwy::SupportedTargets();
  best &= -best;  // The lowest bit is the best target.
  return absl::StrCat("cpu/onednn-f32/", hwy::TargetName(best));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Load(
    const EngineOptions& options, const std::function<void(absl::string_view step)>& on_progress) {
  const auto progress = [&](const std::string& step) {
    if (on_progress != nullptr) on_progress(step);
  };
  PAGODA_ASSIGN_OR_RETURN(const std::string path, ResolveModelPath(options.model_path));
  progress(absl::StrCat("reading model ", path));
  PAGODA_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  std::unique_ptr<Engine> engine(new Engine(std::move(file)));
  engine->model_path_ = path;
  PAGODA_ASSIGN_OR_RETURN(engine->tokenizer_, Tokenizer::FromGguf(engine->file_));
  engine->chat_ =
      std::make_unique<ChatPrompt>(ChatPrompt::ForModel(engine->file_, engine->tokenizer_.get()));
  engine->pool_ = std::make_unique<ThreadPool>(ThreadCount(options.thread_count));
  progress(absl::StrCat("decoding weights with ", engine->pool_->thread_count(), " threads"));
  PAGODA_ASSIGN_OR_RETURN(engine->model_, LlamaModel::Load(engine->file_, *engine->pool_));
  engine->model_spec_ = MakeModelSpec(engine->config(), WeightsRevision(engine->file_));
  engine->pass_ = std::make_unique<ForwardPass>(*engine->model_, *engine->pool_);
  engine->backend_ = BackendName();
  if (const auto eos = engine->tokenizer_->eos()) engine->stop_ids_.push_back(*eos);
  for (const char* name : {"<|im_end|>", "<|endoftext|>"}) {
    const auto id = engine->tokenizer_->FindToken(name);
    if (id.has_value() &&
        std::count(engine->stop_ids_.begin(), engine->stop_ids_.end(), *id) == 0) {
      engine->stop_ids_.push_back(*id);
    }
  }
  progress("ready");
  return engine;
}

std::vector<uint32_t> Engine::EncodeChat(absl::string_view text) const {
  const ChatMessage message{ChatRole::kUser, std::string(text)};
  return chat_->Encode({message}, /*ask_for_reply=*/true);
}

absl::StatusOr<GenerateResult> Engine::Generate(absl::Span<const uint32_t> prompt_ids,
                                                const GenerateOptions& options,
                                                absl::FunctionRef<bool(uint32_t id)> on_token) {
  return Generator(*pass_).Generate(prompt_ids, options, on_token);
}

}  // namespace pagoda
