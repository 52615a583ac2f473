// pagoda eval codecs: our codec beside those of others, on the same model, texts and kernels.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/codec_report.h"
#include "client/cli/commands.h"
#include "client/cli/eval_inputs.h"
#include "client/cli/eval_step.h"
#include "client/cli/interrupt.h"
#include "client/cli/resume.h"
#include "client/lab/kv_codec.h"
#include "client/lab/quality_run.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct CodecsOptions {
  JsonOptions json;
  EvalFlags flags;
  std::vector<std::string> codecs;  // empty: all
  bool resume = false;
};

// Rows of an earlier run in the file of --json; none when there is no such file.
absl::StatusOr<std::vector<CodecRow>> EarlierRows(const CodecsOptions& options,
                                                  const CodecRun& run) {
  const std::optional<std::string> json = EarlierJson(options.resume, options.json);
  if (!json.has_value()) return std::vector<CodecRow>();
  absl::StatusOr<std::vector<CodecRow>> rows = CodecRowsOf(*json, run);
  if (!rows.ok()) return ExplainResume(rows.status(), options.json);
  return rows;
}

// Everything that one command measures, text by text and codec by codec.
class CodecTable {
 public:
  CodecTable(const CodecsOptions& options, EvalInputs inputs, std::vector<lab::KvCodec> codecs)
      : options_(options), inputs_(std::move(inputs)), codecs_(std::move(codecs)) {
    run_ = {.model = IdentityOf(inputs_.engine->model_spec()).hex(),
            .token_count = options.flags.token_count,
            .window_tokens = options.flags.window_tokens};
  }

  absl::Status Measure() {
    PAGODA_ASSIGN_OR_RETURN(rows_, EarlierRows(options_, run_));
    PrintText(options_.json, absl::StrFormat("%s, %d tokens, window %d, 4 sinks\n\n%s",
                                             inputs_.engine->config().name, run_.token_count,
                                             run_.window_tokens, lines_.Head()));
    std::vector<lab::ExactReading> exact(inputs_.names.size());
    for (const lab::KvCodec& codec : codecs_) {
      for (size_t i = 0; i < inputs_.names.size(); ++i) {
        if (Has(codec.name, inputs_.names[i])) continue;
        PAGODA_RETURN_IF_ERROR(MeasureOne(codec, i, exact[i]));
      }
    }
    PrintText(
        options_.json,
        absl::StrCat("\n", CodecSummary(rows_, inputs_.names),
                     "\nAgainst raw16, paired: NLL is the change of the mean and its standard "
                     "error, KL the divergence in nats.\nBits per element, mean of K and V; "
                     "scales and means count, headers and window do not. Last columns: KL over "
                     "that of q4_0+H.\n"));
    return WriteJson(options_.json, CodecJson(run_, rows_));
  }

 private:
  bool Has(const std::string& codec, const std::string& text) const {
    return std::any_of(rows_.begin(), rows_.end(),
                       [&](const CodecRow& row) { return row.codec == codec && row.text == text; });
  }

  // `exact` is filled in for the first codec of the text.
  absl::Status MeasureOne(const lab::KvCodec& codec, size_t text, lab::ExactReading& exact) {
    ForwardPass& pass = inputs_.engine->pass();
    const std::string& name = inputs_.names[text];
    if (exact.ids.empty()) {
      auto read = WithProgress(
          TextStream(options_.json), absl::StrCat(name, ", raw16"), [&](auto progress) {
            return lab::ReadExactly(pass, inputs_.ids[text], run_.window_tokens, progress);
          });
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      PAGODA_ASSIGN_OR_RETURN(exact, std::move(read));
    }
    const auto quality = WithProgress(
        TextStream(options_.json), absl::StrCat(name, ", ", codec.name),
        [&](auto progress) { return lab::CompareCodec(pass, exact, codec, progress); });
    PAGODA_RETURN_IF_ERROR(CheckInterrupted());
    PAGODA_RETURN_IF_ERROR(quality.status());
    rows_.push_back(MakeCodecRow(codec.name, codec.k_bits, codec.v_bits, name, *quality));
    PrintText(options_.json, lines_.Row(CodecLine(rows_.back())));
    // What has been measured survives an interrupt.
    if (options_.json.path == "-") return absl::OkStatus();
    return WriteJson(options_.json, CodecJson(run_, rows_));
  }

  const CodecsOptions& options_;
  EvalInputs inputs_;
  std::vector<lab::KvCodec> codecs_;
  CodecRun run_;
  const TextTable lines_ = CodecLines();
  std::vector<CodecRow> rows_;
};

absl::Status RunCodecs(const CodecsOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  CatchInterrupts();
  PAGODA_ASSIGN_OR_RETURN(EvalInputs inputs,
                          LoadEvalInputs(options.flags, TextStream(options.json)));
  const kernels::PageShape shape = inputs.engine->pass().model().page_shape();
  std::vector<lab::KvCodec> codecs;
  for (const std::string& name : options.codecs.empty() ? lab::KvCodecNames() : options.codecs) {
    codecs.emplace_back();
    PAGODA_ASSIGN_OR_RETURN(codecs.back(),
                            lab::MakeKvCodec(name, shape.head_dim, shape.page_tokens));
  }
  return CodecTable(options, std::move(inputs), std::move(codecs)).Measure();
}

std::string CheckCodecs(const CodecsOptions& options) {
  const std::string resume = CheckResume(options.resume, options.json);
  if (!resume.empty()) return resume;
  return CheckEvalFlags(options.flags);
}

}  // namespace

void AddEvalCodecsCommand(CommandLine& commands, CLI::App* eval) {
  auto options = std::make_shared<CodecsOptions>();
  CLI::App* const app = commands.AddApp(
      eval, "codecs", "Our codec beside those of others: bits, NLL, KL divergence",
      "Teacher-forced as in eval ppl. q8 to q2 go through the worker's encoder and kernels. All\n"
      "others are round trips of K and V that have left the window: llama.cpp's q8_0 and q4_0,\n"
      "with Hadamard (+H) and without; KIVI; Transformers' QuantizedCache (hf4); KVarN; and eKV,\n"
      "the top K and V bits of our own code (e44 is q4 and e88 is q8 in plain float "
      "arithmetic).\n\n"
      "Example: pagoda eval codecs --codec q4,q4_0+H --text legal --tokens 1024\n"
      "         pagoda eval codecs --json codecs.json --resume\n\n"
      "JSON keys: model, tokens, window, rows[] {codec, k_bits, v_bits, text, nll_delta_pct,\n"
      "  nll_delta_se, kl_mean, kl_p99, top1}\n");
  AddEvalFlags(*app, options->flags);
  app->add_option("--codec", options->codecs,
                  absl::StrCat("of ", absl::StrJoin(lab::KvCodecNames(), ", "), "; default: all"))
      ->type_name("NAME,...")
      ->delimiter(',')
      ->check(CLI::IsMember(lab::KvCodecNames()));
  AddResumeFlag(*app, options->resume);
  AddJsonFlag(*app, options->json);
  commands.Add({app, [options] { return CheckCodecs(*options); },
                [options] { return RunCodecs(*options); }});
}

}  // namespace pagoda::cli
