// pagoda bench: push, fetch and lookup against what gRPC alone can do.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/bench_run.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"
#include "client/cli/self_daemon.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

constexpr int64_t kDefaultBytes = int64_t{192} << 20;
constexpr int64_t kBytesMax = int64_t{16} << 30;

struct BenchFlags {
  ConnectionOptions connection;
  JsonOptions json;
  BenchOptions bench;
  std::string model = "smollm2-135m";
  std::string socket = "unix";
  bool self = false;
  CLI::Option* daemon_flag = nullptr;
  CLI::Option* layers_flag = nullptr;
  CLI::Option* heads_flag = nullptr;
  CLI::Option* dim_flag = nullptr;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t dim = 0;
  int64_t pages = 0;

  bool own_daemon() const { return self || daemon_flag->count() == 0; }
};

kernels::PageShape ShapeOf(const BenchFlags& flags) {
  kernels::PageShape shape = flags.model == "llama3-8b" ? kernels::PageShape{32, 8, 128, 64}
                                                        : kernels::PageShape{30, 3, 64, 64};
  if (flags.layers_flag->count() > 0) shape.layer_count = flags.layers;
  if (flags.heads_flag->count() > 0) shape.head_count = flags.heads;
  if (flags.dim_flag->count() > 0) shape.head_dim = flags.dim;
  return shape;
}

int64_t PageBytes(const kernels::PageShape& shape) {
  return int64_t{4} * shape.layer_count * shape.head_count * shape.head_dim * shape.page_tokens;
}

int64_t PageCount(const BenchFlags& flags) {
  if (flags.pages > 0) return std::max<int64_t>(flags.pages, flags.bench.thread_count);
  return std::max<int64_t>(flags.bench.thread_count, kDefaultBytes / PageBytes(ShapeOf(flags)));
}

std::string CheckBench(const BenchFlags& flags) {
  const kernels::PageShape shape = ShapeOf(flags);
  if (const absl::Status status = kernels::ValidatePageShape(shape); !status.ok()) {
    return std::string(status.message());
  }
  if (PageCount(flags) > kBytesMax / PageBytes(shape)) {
    return absl::StrCat("--pages ", PageCount(flags), " of ", PageBytes(shape),
                        " bytes are more than 16 GiB; ask for fewer");
  }
  if (flags.self && flags.daemon_flag->count() > 0) {
    return "--self and --daemon exclude each other";
  }
  return "";
}

absl::Status RunBenchCommand(const BenchFlags& flags) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(flags.json));
  CatchInterrupts();
  BenchOptions options = flags.bench;
  options.shape = ShapeOf(flags);
  options.page_count = PageCount(flags);
  ConnectionOptions connection = flags.connection;
  std::unique_ptr<SelfDaemon> self;
  std::optional<ProgressLine> line;
  const auto progress = [&](const std::string& step) {
    line.reset();
    line.emplace(TextStream(flags.json), step);
  };
  const bool tcp =
      flags.own_daemon() ? flags.socket == "tcp" : !absl::StartsWith(connection.daemon, "unix:");
  if (flags.own_daemon()) {
    progress("starting a daemon");
    SelfDaemonOptions self_options;
    self_options.socket = tcp ? SocketKind::kTcp : SocketKind::kUnix;
    self_options.host_bytes =
        3 * options.page_count * PageBytes(options.shape) + (int64_t{512} << 20);
    PAGODA_ASSIGN_OR_RETURN(self, SelfDaemon::Start(self_options));
    connection.daemon = self->address();
    connection.token.clear();
    connection.tls = {};
  }
  PAGODA_ASSIGN_OR_RETURN(const TempFolder folder, TempFolder::Make("pagoda-bench-"));
  const std::string bare_address =
      tcp ? "127.0.0.1:0" : absl::StrCat("unix:", folder.File("bare.sock"));
  PAGODA_ASSIGN_OR_RETURN(BenchReport report,
                          RunBench(options, connection, bare_address, progress));
  line.reset();
  report.daemon = self != nullptr ? "in-process" : connection.daemon;
  report.socket = tcp ? "tcp" : "unix";
  PrintText(flags.json, BenchText(report));
  return WriteJson(flags.json, BenchJson(report));
}

void AddShapeFlags(CLI::App& app, BenchFlags& flags) {
  app.add_option("--model", flags.model, "shape of the pages: smollm2-135m or llama3-8b")
      ->type_name("NAME")
      ->check(CLI::IsMember({"smollm2-135m", "llama3-8b"}))
      ->capture_default_str();
  flags.layers_flag = app.add_option("--layers", flags.layers, "another number of layers")
                          ->type_name("N")
                          ->check(CLI::Range(1, 512));
  flags.heads_flag = app.add_option("--heads", flags.heads, "another number of kv heads")
                         ->type_name("N")
                         ->check(CLI::Range(1, 256));
  flags.dim_flag = app.add_option("--dim", flags.dim, "another head size, a multiple of 8")
                       ->type_name("N")
                       ->check(CLI::Range(16, 256));
}

}  // namespace

void AddBenchCommand(CommandLine& commands) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* const app = commands.AddApp(
      "bench", "Measure push, fetch and lookup against gRPC alone",
      "Without --daemon it brings its own, inside this process. The bare stream runs in the same\n"
      "rounds over the same kind of socket, so that the ratios hold on a busy machine too.\n\n"
      "Example: pagoda bench\n"
      "         pagoda bench --model llama3-8b --socket tcp --threads 2 --json bench.json\n"
      "         pagoda bench --daemon 127.0.0.1:7070 --pages 64\n\n"
      "JSON keys: daemon, socket, layers, heads, dim, page_tokens, pages, page_bytes,\n"
      "  message_bytes, threads, rounds,\n"
      "  fetch and push {gbps, bare_gbps, bare_nocopy_gbps, ratio, nocopy_ratio, page_p50_ms,\n"
      "                  page_p90_ms, page_p99_ms},\n"
      "  lookup {keys, found, p50_us, p90_us, p99_us, empty_p50_us, empty_p90_us, empty_p99_us,\n"
      "          ratio}\n");
  AddConnectionFlags(*app, flags->connection);
  flags->daemon_flag = app->get_option("--daemon");
  app->add_flag("--self", flags->self, "bring a daemon (the default without --daemon)");
  app->add_option("--socket", flags->socket, "of the daemon it brings: unix or tcp")
      ->type_name("KIND")
      ->check(CLI::IsMember({"unix", "tcp"}))
      ->capture_default_str();
  AddShapeFlags(*app, *flags);
  app->add_option("--pages", flags->pages, "pages per round; default: 192 MiB of them")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--threads", flags->bench.thread_count, "clients at the same time")
      ->type_name("N")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--rounds", flags->bench.round_count, "alternating rounds")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--keys", flags->bench.lookup_keys, "keys of a lookup")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  AddJsonFlag(*app, flags->json);
  commands.Add(
      {app, [flags] { return CheckBench(*flags); }, [flags] { return RunBenchCommand(*flags); }});
  AddStorageBenchCommand(commands, app);
  AddAttentionBenchCommand(commands, app);
  AddTransportBenchCommand(commands, app);
  AddOverlapBenchCommand(commands, app);
}

}  // namespace pagoda::cli
