#include "client/cli/eval_inputs.h"

#include <iterator>
#include <optional>

#include "absl/strings/str_format.h"
#include "client/cli/eval_texts.h"
#include "client/cli/progress_line.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {

void AddEvalFlags(CLI::App& app, EvalFlags& flags) {
  app.add_option("--model", flags.model, "a Llama-family GGUF file; default: the installed one")
      ->type_name("FILE");
  app.add_option("--text", flags.texts,
                 "legal, tech, prose or a file; may be repeated; default: all three")
      ->type_name("NAME");
  app.add_option("--tokens", flags.token_count, "tokens of each text")
      ->type_name("N")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  app.add_option("--window", flags.window_tokens, "most recent tokens that are read in raw16")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--threads", flags.thread_count, "threads; 0: as many as the machine has")
      ->type_name("N")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
}

std::string CheckEvalFlags(const EvalFlags& flags) {
  const int64_t least = flags.window_tokens + 4 + 2;
  if (flags.token_count >= least) return "";
  return absl::StrFormat("--tokens %d is too few for --window %d; at least %d", flags.token_count,
                         flags.window_tokens, least);
}

absl::StatusOr<EvalInputs> LoadEvalInputs(const EvalFlags& flags, FILE* stream) {
  EngineOptions options;
  options.model_path = flags.model;
  options.thread_count = flags.thread_count;
  std::optional<ProgressLine> line;
  EvalInputs inputs;
  PAGODA_ASSIGN_OR_RETURN(inputs.engine, Engine::Load(options, [&](absl::string_view step) {
                            line.reset();
                            if (step != "ready") line.emplace(stream, std::string(step));
                          }));
  inputs.names = flags.texts;
  if (inputs.names.empty()) {
    inputs.names.assign(std::begin(kEvalTextNames), std::end(kEvalTextNames));
  }
  for (const std::string& name : inputs.names) {
    inputs.ids.emplace_back();
    PAGODA_ASSIGN_OR_RETURN(inputs.ids.back(),
                            ReadEvalText(name, flags.token_count, inputs.engine->tokenizer()));
  }
  return inputs;
}

}  // namespace pagoda::cli
