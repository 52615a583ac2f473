// pagoda bench transport: shared memory and gRPC between a daemon and its clients.
#include <algorithm>
#include <bit>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"
#include "client/cli/transport_bench.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct TransportBenchFlags {
  JsonOptions json;
  TransportOptions bench;
  int slice_ms = 60;
  int working_set_mib = 128;
  bool quick = false;
};

std::string CheckBytes(const std::vector<int64_t>& sizes) {
  for (const int64_t bytes : sizes) {
    if (std::has_single_bit(static_cast<uint64_t>(bytes))) continue;
    return absl::StrCat("--bytes ", bytes, ": 65536 times a power of two is expected");
  }
  return "";
}

absl::Status RunTransportBenchCommand(const TransportBenchFlags& flags) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(flags.json));
  CatchInterrupts();
  TransportOptions options = flags.bench;
  options.slice = absl::Milliseconds(flags.slice_ms);
  options.working_set_bytes = int64_t{flags.working_set_mib} << 20;
  if (flags.quick) {
    options.bytes = {64 << 10, 16 << 20};
    options.clients = {1, 2};
    options.rounds = 1;
    options.slice = absl::Milliseconds(5);
    options.working_set_bytes = 16 << 20;
    options.map_pages = 100;
    options.touch_bytes = 64 << 20;
  }
  std::sort(options.clients.begin(), options.clients.end());
  std::sort(options.bytes.begin(), options.bytes.end());
  std::optional<ProgressLine> line;
  const auto progress = [&](const std::string& step) {
    line.reset();
    line.emplace(TextStream(flags.json), step);
  };
  PAGODA_ASSIGN_OR_RETURN(const TransportReport report, RunTransportBench(options, progress));
  line.reset();
  PrintText(flags.json, TransportText(report));
  return WriteJson(flags.json, TransportJson(report));
}

}  // namespace

void AddTransportBenchCommand(CommandLine& commands, CLI::App* bench) {
  auto flags = std::make_shared<TransportBenchFlags>();
  CLI::App* const app = commands.AddApp(
      bench, "transport", "Measure every path between a daemon and its clients",
      "Brings two daemons, inside this process: one on a Unix socket, one on TCP. An object is a\n"
      "page of that size, or several of 8 MiB in one call; each client has one under way. Paths\n"
      "take turns within a round; ratios are medians of pairs in a round, to memcpy of the same\n"
      "bytes by as many threads, or to a bare gRPC stream.\n\n"
      "  shm-map    pages mapped, nothing copied       shm-copy   copied out of shared memory\n"
      "  grpc-unix, grpc-tcp   over gRPC               bare-...   gRPC alone, on an open stream\n\n"
      "Example: pagoda bench transport\n"
      "         pagoda bench transport --bytes 1048576,8388608 --clients 1 --json "
      "transport.json\n\n"
      "JSON keys: staging_fallbacks, rows[] {path, op, bytes, clients, p50_us, p99_us, p999_us,\n"
      "  gbps, bound, bound_gbps, ratio}\n");
  app->add_option("--bytes", flags->bench.bytes, "sizes of an object: 65536 times a power of two")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{64} << 10, int64_t{1} << 28))
      ->capture_default_str();
  app->add_option("--clients", flags->bench.clients, "clients at the same time")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--rounds", flags->bench.rounds, "rounds")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--slice-ms", flags->slice_ms, "of one path in one round")
      ->type_name("MS")
      ->check(CLI::Range(1, 60000))
      ->capture_default_str();
  app->add_option("--working-set-mib", flags->working_set_mib, "what all clients read in turn")
      ->type_name("N")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app->add_flag("--quick", flags->quick, "little of everything: whether it works, no figures");
  AddJsonFlag(*app, flags->json);
  commands.Add({app, [flags] { return CheckBytes(flags->bench.bytes); },
                [flags] { return RunTransportBenchCommand(*flags); }});
}

}  // namespace pagoda::cli
