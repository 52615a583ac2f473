// pagoda demo: what Pagoda does, shown on a real model in about two minutes.
#include <memory>
#include <nlohmann/json.hpp>

#include "client/cli/commands.h"
#include "client/cli/demo_run.h"
#include "client/cli/interrupt.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

absl::Status RunDemoCommand(const DemoOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  CatchInterrupts();
  PAGODA_ASSIGN_OR_RETURN(const DemoReport report, RunDemo(options));
  // The figures are written also when they are bad: somebody will want to see them.
  PAGODA_RETURN_IF_ERROR(WriteJson(options.json, DemoJson(report)));
  return CheckDemo(report);
}

}  // namespace

void AddDemoCommand(CommandLine& commands) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* const app = commands.AddApp(
      "demo", "See in two minutes what Pagoda does, on a real model",
      "Starts a daemon of its own in a temporary folder, loads the model once, and lets three\n"
      "tenants ask about one document: cold, warm, another question, after a restart of the "
      "daemon\n"
      "(from SSD), and over pages encoded to q8 and q4. Every answer is compared with the same\n"
      "request without a cache. Exit code 1 when something is not as promised.\n\n"
      "Example: pagoda demo\n"
      "         pagoda demo --json demo.json\n\n"
      "JSON keys: runs[] {name: cold, warm, warm_other, restart, q8, q4; prompt_tokens, "
      "hit_tokens,\n"
      "  hit_tier, ttft_ms, decode_tps, kv_bytes_per_token, token_agreement (0 to 1)},\n"
      "  ttft_ratio_warm, ttft_ratio_ssd (cold over it), kv_ratio_q8, kv_ratio_q4 (encoded pages,\n"
      "  header and padding counted, over the same tokens in raw16)\n");
  app->add_option("--model", options->model, "a Llama-family GGUF file; default: the installed one")
      ->type_name("FILE");
  app->add_option("--document", options->document,
                  "a text to ask about; default: a licence of this system, usually GPL-3")
      ->type_name("FILE");
  app->add_option("--document-tokens", options->document_tokens, "how much of it is read")
      ->type_name("N")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  app->add_option("--new-tokens", options->new_tokens, "length of an answer at most")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--threads", options->thread_count, "threads; 0: as many as the machine has")
      ->type_name("N")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunDemoCommand(*options); }});
}

}  // namespace pagoda::cli
