// pagoda eval ppl: what q8 and q4 cost in quality, measured on real texts.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/eval_inputs.h"
#include "client/cli/eval_report.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct EvalOptions {
  JsonOptions json;
  EvalFlags flags;
};

absl::Status RunEval(const EvalOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  CatchInterrupts();
  PAGODA_ASSIGN_OR_RETURN(const EvalInputs inputs,
                          LoadEvalInputs(options.flags, TextStream(options.json)));
  const std::vector<std::string>& names = inputs.names;
  const TextTable table = EvalTable();
  PrintText(
      options.json,
      absl::StrFormat("%s, window %d tokens, 4 sinks; q8 and q4 are encoded by the worker "
                      "here, bit for bit as pagodad encodes them\n\n%s",
                      inputs.engine->config().name, options.flags.window_tokens, table.Head()));
  PerplexityOptions perplexity;
  perplexity.window_tokens = options.flags.window_tokens;
  std::vector<EvalText> texts;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StatusOr<PerplexityReport> report;
    {
      ProgressLine line(TextStream(options.json),
                        absl::StrFormat("%s, text %d of %d", names[i], i + 1, names.size()));
      report = EvaluatePerplexity(
          inputs.engine->pass(), inputs.ids[i], perplexity, [&line](int64_t done, int64_t total) {
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
  AddEvalFlags(*app, options->flags);
  AddJsonFlag(*app, options->json);
  commands.Add({app, [options] { return CheckEvalFlags(options->flags); },
                [options] { return RunEval(*options); }});
  AddEvalCodecsCommand(commands, eval);
  AddEvalProfileCommand(commands, eval);
  AddEvalAblateCommand(commands, eval);
  AddEvalDecodeCommand(commands, eval);
}

}  // namespace pagoda::cli
