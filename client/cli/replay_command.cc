// pagoda replay: what eviction policies would have hit on a trace, at any capacity and precision.
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/model_shape.h"
#include "client/cli/progress_line.h"
#include "client/cli/replay_live.h"
#include "client/cli/replay_plan.h"
#include "client/cli/replay_report.h"
#include "client/cli/units.h"
#include "storage/base/status_macros.h"
#include "storage/replay/replay_policies.h"
#include "storage/replay/trace_file.h"

namespace pagoda::cli {
namespace {

// Replays one trace at every capacity, precision and policy of a plan.
class TraceReplay {
 public:
  TraceReplay(const ReplayPlan& plan, const replay::Trace& trace) : plan_(plan), trace_(trace) {}

  absl::Status Run(ProgressLine& line, std::vector<ReplayRow>& rows) {
    for (const Precision precision : plan_.precisions) {
      // A block's bytes are block_bytes / page_tokens: blocks need not be whole pages.
      const double block_bytes = static_cast<double>(StoredPageBytes(plan_.shape, precision)) *
                                 static_cast<double>(trace_.block_tokens()) /
                                 plan_.shape.page_tokens;
      for (const double share : plan_.shares) {
        const int64_t blocks = replay::CapacityBlocks(trace_, share);
        const auto bytes = static_cast<int64_t>(static_cast<double>(blocks) * block_bytes);
        PAGODA_RETURN_IF_ERROR(
            AddRows({.share = share, .blocks = blocks, .bytes = bytes}, precision, line, rows));
      }
      for (const int64_t bytes : plan_.budget_bytes) {
        const auto blocks = static_cast<int64_t>(static_cast<double>(bytes) / block_bytes);
        if (blocks < 1) return TooFewBytes(bytes, block_bytes, precision);
        const double share =
            static_cast<double>(blocks) / static_cast<double>(trace_.unique_count());
        PAGODA_RETURN_IF_ERROR(
            AddRows({.share = share, .blocks = blocks, .bytes = bytes}, precision, line, rows));
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Capacity {
    double share;
    int64_t blocks;
    int64_t bytes;
  };

  absl::Status TooFewBytes(int64_t bytes, double block_bytes, Precision precision) const {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes hold no block of %s: %d tokens take %.0f bytes in %s; give more bytes, or a "
        "smaller --model",
        bytes, trace_.name(), trace_.block_tokens(), block_bytes, PrecisionName(precision)));
  }

  absl::Status AddRows(const Capacity& capacity, Precision precision, ProgressLine& line,
                       std::vector<ReplayRow>& rows) {
    for (const std::string& policy : plan_.policies) {
      ReplayRow& row = rows.emplace_back();
      row.trace = trace_.name();
      row.policy = policy;
      row.share = capacity.share;
      row.capacity_blocks = capacity.blocks;
      row.bytes = capacity.bytes;
      row.precision = precision;
      PAGODA_ASSIGN_OR_RETURN(row.result, ResultOf(policy, capacity.blocks, line));
      ++done_;
    }
    return absl::OkStatus();
  }

  // Precisions at one share have one capacity in blocks: it is replayed once.
  absl::StatusOr<replay::ReplayResult> ResultOf(const std::string& policy, int64_t blocks,
                                                ProgressLine& line) {
    const auto key = std::pair(policy, blocks);
    if (const auto it = results_.find(key); it != results_.end()) return it->second;
    const auto run_count = static_cast<double>(plan_.policies.size() * plan_.precisions.size() *
                                               (plan_.shares.size() + plan_.budget_bytes.size()));
    PAGODA_ASSIGN_OR_RETURN(const replay::ReplayResult result,
                            replay::ReplayPolicy(trace_, blocks, policy, [&](double share) {
                              line.set_share((done_ + share) / run_count);
                              return !Interrupted();
                            }));
    results_.emplace(key, result);
    return result;
  }

  const ReplayPlan& plan_;
  const replay::Trace& trace_;
  std::map<std::pair<std::string, int64_t>, replay::ReplayResult> results_;
  int done_ = 0;
};

std::string NoteOf(const ReplayPlan& plan) {
  const bool by_attention =
      std::any_of(plan.policies.begin(), plan.policies.end(),
                  [](const std::string& name) { return name == "attention" || name == "hybrid"; });
  if (!by_attention) return "";
  return "traces carry no attention mass: attention is lru here, and hybrid drops that term";
}

absl::StatusOr<std::vector<ReplayRow>> ReplayTraces(const ReplayFlags& flags,
                                                    const ReplayPlan& plan) {
  std::vector<ReplayRow> rows;
  for (const std::string& path : flags.traces) {
    std::optional<ProgressLine> line(std::in_place, stderr, absl::StrCat("reading ", path));
    PAGODA_ASSIGN_OR_RETURN(const replay::Trace trace, ReadPlannedTrace(path, flags, plan));
    line.emplace(stderr, absl::StrCat("replaying ", trace.name()));
    PAGODA_RETURN_IF_ERROR(TraceReplay(plan, trace).Run(*line, rows));
  }
  return rows;
}

absl::Status RunReplay(const ReplayFlags& flags) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(flags.json));
  PAGODA_RETURN_IF_ERROR(CheckJsonPath({flags.plot}));
  PAGODA_ASSIGN_OR_RETURN(const ReplayPlan plan, MakePlan(flags));
  CatchInterrupts();
  const absl::StatusOr<std::vector<ReplayRow>> rows = ReplayTraces(flags, plan);
  PAGODA_RETURN_IF_ERROR(CheckInterrupted());
  PAGODA_RETURN_IF_ERROR(rows.status());

  Json page_bytes = Json::object();
  std::string text;
  absl::StrAppendFormat(&text, "%s, pages of %d tokens:", flags.model, flags.page_tokens);
  for (const Precision precision : plan.precisions) {
    const int64_t bytes = StoredPageBytes(plan.shape, precision);
    page_bytes[std::string(PrecisionName(precision))] = bytes;
    absl::StrAppend(&text, " ", PrecisionName(precision), " ",
                    FormatBytes(static_cast<double>(bytes)));
  }
  const std::string note = NoteOf(plan);
  absl::StrAppend(&text, "\n\n", ReplayTable(*rows));
  if (!note.empty()) absl::StrAppend(&text, "\n", note, "\n");
  PrintText(flags.json, text);
  if (!flags.plot.empty()) {
    PAGODA_RETURN_IF_ERROR(WriteOutput(flags.plot, HitRatePlot(ReplayPanels(*rows))));
  }
  return WriteJson(flags.json, {{"model", flags.model},
                                {"page_tokens", flags.page_tokens},
                                {"page_bytes", std::move(page_bytes)},
                                {"note", note},
                                {"rows", ReplayRowsJson(*rows)}});
}

std::string CheckReplay(const ReplayFlags& flags) {
  if (flags.json.path == "-" && flags.plot == "-") return "--json - and --plot - are both stdout";
  const absl::Status status = MakePlan(flags).status();
  if (!status.ok()) return std::string(status.message());
  return flags.live ? CheckReplayLive(flags) : "";
}

void AddSizeFlags(CLI::App& app, ReplayFlags& flags) {
  CLI::Option* const share = flags.share_flag =
      app.add_option("--share", flags.shares, "capacities, as shares of the trace's blocks")
          ->type_name("S,...")
          ->delimiter(',')
          ->check(CLI::Range(1e-9, 1.0))
          ->capture_default_str();
  CLI::Option* const bytes =
      app.add_option("--bytes", flags.bytes, "capacities in bytes, such as 64GiB,1.5TB")
          ->type_name("B,...")
          ->delimiter(',')
          ->excludes(share);
  app.add_option("--raw16-tokens", flags.raw16_tokens,
                 "capacities in bytes: what K and V of so many tokens take in raw16")
      ->type_name("N,...")
      ->delimiter(',')
      ->excludes(share)
      ->excludes(bytes);
  app.add_option("--model", flags.model,
                 "whose pages: llama-3-8b, llama-3-70b, qwen2.5-7b, smollm2-135m, or "
                 "LAYERS:KVHEADS:HEADDIM")
      ->type_name("SPEC")
      ->capture_default_str();
  app.add_option("--page-tokens", flags.page_tokens, "tokens of a page")
      ->type_name("N")
      ->check(CLI::IsMember({32, 64, 128, 256}))
      ->capture_default_str();
  app.add_option("--precision", flags.precisions,
                 "precisions of stored pages: raw16, q8, q4, q3, q2")
      ->type_name("P,...")
      ->delimiter(',')
      ->check(CLI::IsMember({"raw16", "q8", "q4", "q3", "q2"}))
      ->capture_default_str();
}

}  // namespace

void AddReplayCommand(CommandLine& commands) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* const app = commands.AddApp(
      "replay", "Show what eviction policies would have hit on a trace",
      "Traces: Mooncake JSONL, conversations of agents (JSON, .gz too), or CSV: a line\n"
      "\"# block_tokens=64\", a line \"time_s,tokens,ids\", then one line a request, ids with "
      "spaces\n"
      "between them. Ids are hashes of the whole prefix.\n\n"
      "Policies: lru (leaf first, the daemon's), lru-root-first, lfu (without chains, as the\n"
      "literature counts it), lfu-leaf-first (the daemon's), attention, hybrid, s3fifo, belady\n"
      "(offline: knows the future), or all. Every block of a trace is a hit or a miss as a whole; "
      "a\n"
      "page is stored at one precision, headers, scales and padding counted.\n\n"
      "Example: pagoda replay conversation_trace.jsonl --policy lru,s3fifo --plot hits.svg\n"
      "         pagoda replay conversation_trace.jsonl --policy all --share 0.02,0.05 --json -\n"
      "         pagoda replay conversation_trace.jsonl --raw16-tokens 3M --precision raw16,q8,q4\n"
      "           (the same bytes, which hold 3 million tokens in raw16, at each precision)\n"
      "         pagoda replay agents.jsonl.gz --bytes 256GiB,1TiB --model llama-3-70b\n"
      "         pagoda replay conversation_trace.jsonl --live --share 0.05 --model 1:2:64\n"
      "           (a page for each block, pushed to and fetched from a daemon)\n\n"
      "JSON keys: model, page_tokens, page_bytes {raw16, q8, q4, ...}, note,\n"
      "  rows[] {trace, policy, share, capacity_blocks, bytes, precision, requests, blocks,\n"
      "          block_hits, prefix_hits, token_hit_ratio,\n"
      "          first_half and second_half {requests, blocks, block_hits, prefix_hits,\n"
      "                                      token_hit_ratio}}\n"
      "  --live: trace, daemon, policy, precision, capacity_blocks, bytes, requests, blocks,\n"
      "          prefix_hits, simulated_prefix_hits, fetched_pages, fetched_bytes,\n"
      "          fetch_failures, push_failures, seconds, late_seconds_max\n");
  app->add_option("TRACE", flags->traces, "trace files")->type_name("FILE ...")->required();
  app->add_option("--policy", flags->policies, "policies, or all")
      ->type_name("P,...")
      ->delimiter(',')
      ->capture_default_str();
  AddSizeFlags(*app, *flags);
  app->add_option("--requests", flags->requests, "only the first requests")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->default_str("all");
  app->add_option("--conversations", flags->conversations, "only the first conversations of agents")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->default_str("all");
  app->add_option("--plot", flags->plot, "draw hit rates against bytes into this SVG file")
      ->type_name("FILE");
  app->add_flag("--live", flags->live,
                "drive a daemon along the trace, one of its own or that of --daemon, and compare "
                "its hits with the simulation");
  app->add_option("--speed", flags->speed,
                  "seconds of the trace in one second of --live; 0: as fast as the daemon answers")
      ->type_name("X")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  AddConnectionFlags(*app, flags->connection);
  flags->daemon_flag = app->get_option("--daemon");
  AddJsonFlag(*app, flags->json);
  commands.Add({app, [flags] { return CheckReplay(*flags); },
                [flags] { return flags->live ? RunReplayLive(*flags) : RunReplay(*flags); }});
}

}  // namespace pagoda::cli
