// pagoda eval ppl: what q8 and q4 cost in quality, measured on real texts.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/eval_report.h"
#include "client/cli/eval_texts.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"
#include "client/cli/units.h"
#include "client/worker/engine.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct EvalOptions {
  JsonOptions json;
  std::string model;
  std::vector<std::string> texts;  // empty: all three
  int64_t token_count = 4096;
  int64_t window_tokens = 128;
  int thread_count = 0;
};

absl::StatusOr<std::unique_ptr<Engine>> LoadEngine(const EvalOptions& options) {
  EngineOptions engine_options;
  engine_options.model_path = options.model;
  engine_options.thread_count = options.thread_count;
  std::optional<ProgressLine> line;
  return Engine::Load(engine_options, [&](absl::string_view step) {
    line.reset();
    if (step != "ready") line.emplace(TextStream(options.json), std::string(step));
  });
}

absl::Status RunEval(const EvalOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  CatchInterrupts();
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(options));
  std::vector<std::string> names = options.texts;
  if (names.empty()) names.assign(std::begin(kEvalTextNames), std::end(kEvalTextNames));
  // A text that is missing is said before minutes are spent on the others.
  std::vector<std::vector<uint32_t>> ids;
  for (const std::string& name : names) {
    ids.emplace_back();
    PAGODA_ASSIGN_OR_RETURN(ids.back(),
                            ReadEvalText(name, options.token_count, engine->tokenizer()));
  }
  const TextTable table = EvalTable();
  PrintText(options.json,
            absl::StrFormat("%s, window %d tokens, 4 sinks; q8 and q4 are encoded by the worker "
                            "here, bit for bit as pagodad encodes them\n\n%s",
                            engine->config().name, options.window_tokens, table.Head()));
  PerplexityOptions perplexity;
  perplexity.window_tokens = options.window_tokens;
  std::vector<EvalText> texts;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StatusOr<PerplexityReport> report;
    {
      ProgressLine line(TextStream(options.json),
                        absl::StrFormat("%s, text %d of %d", names[i], i + 1, names.size()));
      report = EvaluatePerplexity(
          engine->pass(), ids[i], perplexity, [&line](int64_t done, int64_t total) {
            line.set_share(static_cast<double>(done) / static_cast<double>(total));
            return !Interrupted();
          });
    }
    PAGODA_RETURN_IF_ERROR(CheckInterrupted());
    PAGODA_RETURN_IF_ERROR(report.status());
    texts.push_back({names[i], *std::move(report)});
    PrintText(options.json, table.Row(EvalRow(texts.back())));
  }
  PrintText(options.json,
            "\nNLL: change of the mean against raw16, paired, and its standard error. KL: mean "
            "divergence from raw16, nats.\n");
  return WriteJson(options.json, EvalJson(texts));
}

std::string CheckEval(const EvalOptions& options) {
  // Positions before the window's end read the same bytes at every precision: nothing to compare.
  const int64_t least = options.window_tokens + 4 + 2;
  if (options.token_count >= least) return "";
  return absl::StrFormat("--tokens %d is too few for --window %d; at least %d", options.token_count,
                         options.window_tokens, least);
}

}  // namespace

void AddEvalCommand(CommandLine& commands) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* const eval = commands.AddApp("eval", "Measure what compression costs in quality",
                                         "Example: pagoda eval ppl\n");
  CLI::App* const app = commands.AddApp(
      eval, "ppl", "Perplexity and KL divergence of q8 and q4 against raw16",
      "Teacher-forced, position by position, on three texts (deploy/fetch_texts.sh puts them into\n"
      "the cache folder). Runs in this process: the worker's codec gives the same bits as the\n"
      "daemon's, so no daemon is needed.\n\n"
      "Example: pagoda eval ppl\n"
      "         pagoda eval ppl --text legal --tokens 1024\n\n"
      "JSON keys: texts[] {name, tokens, nll_raw16, q8_delta_pct, q4_delta_pct, q8_mean_kl,\n"
      "  q4_mean_kl, q8_delta_se_pct, q4_delta_se_pct, q8_top1, q4_top1}\n");
  app->add_option("--model", options->model, "a Llama-family GGUF file; default: the installed one")
      ->type_name("FILE");
  app->add_option("--text", options->texts,
                  "legal, tech, prose or a file; may be repeated; default: all three")
      ->type_name("NAME");
  app->add_option("--tokens", options->token_count, "tokens of each text")
      ->type_name("N")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  app->add_option("--window", options->window_tokens, "most recent tokens that are read in raw16")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("--threads", options->thread_count, "threads; 0: as many as the machine has")
      ->type_name("N")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  AddJsonFlag(*app, options->json);
  commands.Add(
      {app, [options] { return CheckEval(*options); }, [options] { return RunEval(*options); }});
}

}  // namespace pagoda::cli
