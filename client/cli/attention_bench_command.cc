// pagoda bench attention: decode attention on pages, beside raw16 and beside a plain read.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/cli/attention_bench.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"
#include "kernels/isa.h"
#include "kernels/page_layout.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct AttentionBenchFlags {
  JsonOptions json;
  AttentionBenchOptions bench;
  std::vector<std::string> precisions = {"raw16", "q8", "q4"};
  std::vector<std::string> orders = {"in-order", "shuffled"};
  int64_t mib = 512;
  std::string isa = kernels::AvailableIsas().front();
};

std::string CheckFlags(const AttentionBenchFlags& flags) {
  for (const int32_t head_dim : flags.bench.head_dims) {
    const absl::Status status = kernels::ValidatePageShape({1, 1, head_dim, 64});
    if (!status.ok()) return std::string(status.message());
  }
  return "";
}

absl::Status RunAttentionBenchCommand(const AttentionBenchFlags& flags) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(flags.json));
  CatchInterrupts();
  AttentionBenchOptions options = flags.bench;
  options.precisions.clear();
  for (const std::string& name : flags.precisions) {
    PAGODA_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(name));
    options.precisions.push_back(precision);
  }
  options.shuffled.clear();
  for (const std::string& order : flags.orders) options.shuffled.push_back(order == "shuffled");
  options.pool_bytes = flags.mib << 20;
  PAGODA_RETURN_IF_ERROR(kernels::UseIsa(flags.isa));
  options.float_codes = flags.isa == "avx512";
  std::optional<ProgressLine> line;
  const auto progress = [&](const std::string& step) {
    line.reset();
    line.emplace(stderr, step);
  };
  const absl::StatusOr<std::vector<AttentionBenchRow>> rows = RunAttentionBench(options, progress);
  line.reset();
  PAGODA_RETURN_IF_ERROR(rows.status());
  PrintText(flags.json, AttentionBenchText(*rows, flags.isa));
  return WriteJson(flags.json, AttentionBenchJson(*rows, flags.isa));
}

}  // namespace

void AddAttentionBenchCommand(CommandLine& commands, CLI::App* bench) {
  auto flags = std::make_shared<AttentionBenchFlags>();
  CLI::App* const app = commands.AddApp(
      bench, "attention", "Measure decode attention on pages against raw16 and a plain read",
      "One query position over more pages than any cache holds, as the worker decodes. A round\n"
      "reads and attends at every precision in turn; rows are medians, ratios medians of pairs\n"
      "within a round; scaling is over the first of --threads. Wall time: an idle machine is\n"
      "needed.\n\n"
      "Example: pagoda bench attention\n"
      "         pagoda bench attention --head-dim 128 --gqa 8 --threads 1,2 --order shuffled\n"
      "         pagoda bench attention --isa avx2 --json\n\n"
      "JSON keys: rows[] {isa, precision, head_dim, gqa, order, threads, tokens, ns_per_token,\n"
      "  gbps, bound_gbps, of_bound, speedup_vs_raw16, scaling}\n");
  app->add_option("--precision", flags->precisions, "raw16, q8, q4")
      ->type_name("P,...")
      ->delimiter(',')
      ->check(CLI::IsMember({"raw16", "q8", "q4"}))
      ->capture_default_str();
  app->add_option("--head-dim", flags->bench.head_dims, "channels of a head")
      ->type_name("D,...")
      ->delimiter(',')
      ->check(CLI::Range(16, 256))
      ->capture_default_str();
  app->add_option("--gqa", flags->bench.group_counts, "query heads that share a kv head")
      ->type_name("G,...")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--order", flags->orders, "how pages lie in memory: in-order, shuffled")
      ->type_name("O,...")
      ->delimiter(',')
      ->check(CLI::IsMember({"in-order", "shuffled"}))
      ->capture_default_str();
  app->add_option("--threads", flags->bench.thread_counts, "threads that share the tokens")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_flag("--small-pages", flags->bench.small_pages,
                "memory in pages of 4 KiB, not the huge ones that the worker asks for");
  app->add_option("--rounds", flags->bench.rounds, "rounds")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--mib", flags->mib, "MiB of pages at each precision")
      ->type_name("N")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--isa", flags->isa, "instruction set")
      ->type_name("NAME")
      ->check(CLI::IsMember(kernels::AvailableIsas()))
      ->capture_default_str();
  AddJsonFlag(*app, flags->json);
  commands.Add({app, [flags] { return CheckFlags(*flags); },
                [flags] { return RunAttentionBenchCommand(*flags); }});
}

}  // namespace pagoda::cli
