// pagoda bench overlap: what computing while layers travel saves.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/overlap_bench.h"
#include "client/cli/progress_line.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct OverlapBenchFlags {
  JsonOptions json;
  OverlapOptions bench;
};

absl::Status RunOverlapBenchCommand(const OverlapBenchFlags& flags) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(flags.json));
  CatchInterrupts();
  std::optional<ProgressLine> line;
  const auto progress = [&](const std::string& step) {
    line.reset();
    line.emplace(TextStream(flags.json), step);
  };
  PAGODA_ASSIGN_OR_RETURN(const OverlapReport report, RunOverlapBench(flags.bench, progress));
  line.reset();
  PrintText(flags.json, OverlapText(report));
  return WriteJson(flags.json, OverlapJson(report));
}

}  // namespace

void AddOverlapBenchCommand(CommandLine& commands, CLI::App* bench) {
  auto flags = std::make_shared<OverlapBenchFlags>();
  CLI::App* const app = commands.AddApp(
      bench, "overlap", "Measure what computing while layers travel saves",
      "Brings a daemon and runs the real model: a prompt whose front is cached, loaded whole\n"
      "and then computed, against loaded layer by layer meanwhile; from SSD, and over gRPC on\n"
      "lines so slow that fetching takes --fetch-shares times as long as computing. Medians of\n"
      "pairs; saved is (TTFT whole - by layer) / min(fetch, compute). It needs an idle machine.\n\n"
      "Example: pagoda bench overlap\n"
      "         pagoda bench overlap --prefix 6144 --tail 256 --json overlap.json\n\n"
      "JSON keys: model, prefix_tokens, tail_tokens, rows[] {path (ssd, grpc), mb_per_second,\n"
      "  bytes, fetch_ms, compute_ms, ttft_whole_ms, ttft_by_layer_ms, saved}\n");
  app->add_option("--model", flags->bench.model, "GGUF file (default: the installed model)")
      ->type_name("FILE");
  app->add_option("--prefix", flags->bench.prefix_tokens, "tokens that are cached")
      ->type_name("N")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  app->add_option("--tail", flags->bench.tail_tokens, "tokens that are computed")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app->add_option("--pairs", flags->bench.pairs, "pairs of each path")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--fetch-shares", flags->bench.fetch_shares,
                  "how long fetching over gRPC takes, computing being 1")
      ->type_name("X,...")
      ->delimiter(',')
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  app->add_option("--threads", flags->bench.thread_count, "of the model; 0: all, at most 16")
      ->type_name("N")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  AddJsonFlag(*app, flags->json);
  commands.Add({app, nullptr, [flags] { return RunOverlapBenchCommand(*flags); }});
}

}  // namespace pagoda::cli
