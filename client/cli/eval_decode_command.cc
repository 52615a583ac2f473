// pagoda eval decode: what integers instead of floats in decode cost in quality.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/eval_inputs.h"
#include "client/cli/eval_step.h"
#include "client/cli/interrupt.h"
#include "client/cli/text_table.h"
#include "client/lab/decode_run.h"
#include "kernels/isa.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct DecodeOptions {
  JsonOptions json;
  EvalFlags flags;
  std::vector<std::string> precisions = {"q8", "q4"};
  int64_t decode_tokens = 512;
  std::string isa = kernels::AvailableIsas().front();
};

TextTable DecodeTable() {
  return TextTable({{"precision", Align::kLeft, 9},
                    {"text", Align::kLeft, 8},
                    {"NLL %, floats", Align::kRight, 15},
                    {"integers", Align::kRight, 15},
                    {"KL e-3, floats", Align::kRight, 14},
                    {"integers", Align::kRight, 8},
                    {"between", Align::kRight, 8}});
}

std::string Change(const QualitySummary& quality) {
  return absl::StrFormat("%+.3f +-%.3f", quality.nll_delta_percent,
                         quality.nll_delta_standard_error_percent);
}
std::string Kl(const QualitySummary& quality) {
  return absl::StrFormat("%.4f", 1000 * quality.mean_kl);
}

Json RowJson(const std::string& precision, const std::string& text,
             const lab::DecodeComparison& found) {
  return {{"precision", precision},
          {"text", text},
          {"nll_delta_pct_floats", found.floats.nll_delta_percent},
          {"nll_delta_pct_integers", found.integers.nll_delta_percent},
          {"kl_floats", found.floats.mean_kl},
          {"kl_integers", found.integers.mean_kl},
          {"kl_between", found.between.mean_kl}};
}

absl::Status RunDecode(const DecodeOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  PAGODA_RETURN_IF_ERROR(kernels::UseIsa(options.isa));
  CatchInterrupts();
  FILE* const stream = TextStream(options.json);
  PAGODA_ASSIGN_OR_RETURN(EvalInputs inputs, LoadEvalInputs(options.flags, stream));
  ForwardPass& pass = inputs.engine->pass();
  const TextTable table = DecodeTable();
  PrintText(options.json,
            absl::StrFormat("%s, %d tokens, the last %d or more decoded one by one, window %d, "
                            "%s\n\n%s",
                            inputs.engine->config().name, options.flags.token_count,
                            options.decode_tokens, options.flags.window_tokens, options.isa,
                            table.Head()));
  Json rows = Json::array();
  for (size_t text = 0; text < inputs.names.size(); ++text) {
    const std::string& text_name = inputs.names[text];
    const auto exact = WithProgress(stream, absl::StrCat(text_name, ", raw16"), [&](auto progress) {
      return lab::ReadExactly(pass, inputs.ids[text], options.flags.window_tokens, progress);
    });
    PAGODA_RETURN_IF_ERROR(CheckInterrupted());
    PAGODA_RETURN_IF_ERROR(exact.status());
    for (const std::string& name : options.precisions) {
      PAGODA_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(name));
      const KvOptions kv = {.precision = precision, .window_tokens = options.flags.window_tokens};
      const auto found =
          WithProgress(stream, absl::StrCat(text_name, ", ", name), [&](auto progress) {
            return lab::CompareDecode(pass, *exact, kv, options.decode_tokens, progress);
          });
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      PAGODA_RETURN_IF_ERROR(found.status());
      PrintText(options.json,
                table.Row({{name, text_name, Change(found->floats), Change(found->integers),
                            Kl(found->floats), Kl(found->integers), Kl(found->between)}}));
      rows.push_back(RowJson(name, text_name, *found));
    }
  }
  PrintText(options.json,
            "\nfloats, integers: against raw16 by prefill; between: integers from floats.\n");
  return WriteJson(options.json, {{"tokens", options.flags.token_count},
                                  {"window", options.flags.window_tokens},
                                  {"isa", options.isa},
                                  {"rows", std::move(rows)}});
}

std::string CheckDecode(const DecodeOptions& options) {
  EvalFlags flags = options.flags;
  flags.token_count -= options.decode_tokens;
  if (CheckEvalFlags(flags).empty()) return "";
  return absl::StrFormat("--tokens %d leaves too few before --decode-tokens %d for --window %d",
                         options.flags.token_count, options.decode_tokens,
                         options.flags.window_tokens);
}

}  // namespace

void AddEvalDecodeCommand(CommandLine& commands, CLI::App* eval) {
  auto options = std::make_shared<DecodeOptions>();
  CLI::App* const app = commands.AddApp(
      eval, "decode", "What integer arithmetic in decode costs in quality",
      "Decode reads codes by integers where the processor is good at them (AVX512-VNNI; q4 on "
      "AVX2).\n"
      "The end of each text is decoded token by token, by floats and by integers, and compared.\n"
      "Elsewhere both are floats and nothing lies between them.\n\n"
      "Example: pagoda eval decode --text legal --decode-tokens 256\n\n"
      "JSON keys: tokens, window, isa, rows[] {precision, text, nll_delta_pct_floats,\n"
      "  nll_delta_pct_integers, kl_floats, kl_integers, kl_between}\n");
  AddEvalFlags(*app, options->flags);
  app->add_option("--precision", options->precisions, "q8, q4")
      ->type_name("P,...")
      ->delimiter(',')
      ->check(CLI::IsMember({"q8", "q4"}))
      ->capture_default_str();
  app->add_option("--decode-tokens", options->decode_tokens, "tokens decoded at the end of a text")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 13))
      ->capture_default_str();
  app->add_option("--isa", options->isa, "instruction set")
      ->type_name("NAME")
      ->check(CLI::IsMember(kernels::AvailableIsas()))
      ->capture_default_str();
  AddJsonFlag(*app, options->json);
  commands.Add({app, [options] { return CheckDecode(*options); },
                [options] { return RunDecode(*options); }});
}

}  // namespace pagoda::cli
