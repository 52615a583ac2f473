#include "client/cli/overlap_bench.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/connection.h"
#include "client/cli/interrupt.h"
#include "client/cli/percentile.h"
#include "client/cli/self_daemon.h"
#include "client/cli/slow_relay.h"
#include "client/cli/temp_folder.h"
#include "client/cli/text_table.h"
#include "client/client.h"
#include "client/worker/engine.h"
#include "client/worker/pagoda_prefix_cache.h"
#include "client/worker/splitmix64.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr absl::string_view kUnix = "unix:";

class Bench {
 public:
  Bench(const OverlapOptions& options, const std::function<void(const std::string&)>& progress)
      : options_(options), progress_(progress) {}

  absl::StatusOr<OverlapReport> Run() {
    PAGODA_RETURN_IF_ERROR(Start());
    if (options_.ssd) PAGODA_RETURN_IF_ERROR(Measure("ssd", 0));
    for (const double share : options_.fetch_shares) PAGODA_RETURN_IF_ERROR(Measure("grpc", share));
    return std::move(report_);
  }

 private:
  absl::Status Start();
  absl::Status Measure(const std::string& path, double share);
  absl::Status Pair(client::Client& client, bool evict, bool layers_first, OverlapRow& row);
  absl::StatusOr<GenerateResult> Generate(client::Client& client, bool by_layer);
  absl::StatusOr<std::unique_ptr<client::Client>> Connect(const std::string& target, bool shm);
  absl::Status EvictHost();

  const OverlapOptions options_;
  const std::function<void(const std::string&)> progress_;
  OverlapReport report_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SelfDaemon> daemon_;
  std::unique_ptr<TempFolder> folder_;
  std::vector<uint32_t> prefix_;
  uint64_t tails_ = 0;
};

absl::Status Bench::Start() {
  PAGODA_ASSIGN_OR_RETURN(
      engine_, Engine::Load({.model_path = options_.model, .thread_count = options_.thread_count},
                            [this](absl::string_view step) { progress_(std::string(step)); }));
  const int64_t context = engine_->config().context_tokens;
  if (options_.prefix_tokens + options_.tail_tokens >= context) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d + %d tokens do not fit the model's context of %d",
                        options_.prefix_tokens, options_.tail_tokens, context));
  }
  SelfDaemonOptions daemon;
  daemon.ssd = true;
  daemon.host_bytes = int64_t{3} << 30;
  PAGODA_ASSIGN_OR_RETURN(daemon_, SelfDaemon::Start(daemon));
  PAGODA_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Make("pagoda-bench-"));
  folder_ = std::make_unique<TempFolder>(std::move(folder));
  SplitMix64 random(1);
  for (int64_t i = 0; i < options_.prefix_tokens; ++i) {
    prefix_.push_back(static_cast<uint32_t>(random.Next() % engine_->config().vocab_size));
  }
  report_.model = engine_->model_spec().model;
  report_.prefix_tokens = options_.prefix_tokens;
  report_.tail_tokens = options_.tail_tokens;
  progress_(absl::StrFormat("computing %d tokens once", options_.prefix_tokens));
  PAGODA_ASSIGN_OR_RETURN(const auto client, Connect(daemon_->address(), true));
  return Generate(*client, /*by_layer=*/false).status();
}

absl::StatusOr<std::unique_ptr<client::Client>> Bench::Connect(const std::string& target,
                                                               bool shm) {
  client::ClientOptions options;
  options.target = target;
  options.shm_socket = shm ? "" : "none";
  options.client_name = "pagoda-bench";
  options.model = engine_->model_spec();
  options.page_tokens = LlamaModel::kPageTokens;
  options.backend_tag = BackendTagOf(engine_->backend());
  options.control_timeout = kTimeout;
  options.transfer_timeout = kTimeout;
  options.push_queue_bytes_max = int64_t{1} << 30;
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<client::Client> client, client::Client::Create(options));
  PAGODA_RETURN_IF_ERROR(client->WaitConnected(kTimeout));
  return client;
}

absl::StatusOr<GenerateResult> Bench::Generate(client::Client& client, bool by_layer) {
  std::vector<uint32_t> ids = prefix_;
  SplitMix64 random(1000 + ++tails_);
  for (int64_t i = 0; i < options_.tail_tokens; ++i) {
    ids.push_back(static_cast<uint32_t>(random.Next() % engine_->config().vocab_size));
  }
  PagodaPrefixCache cache(client, {ScopeKind::kPrivate, ""});
  PAGODA_ASSIGN_OR_RETURN(const GenerateResult result,
                          engine_->Generate(ids, {.new_tokens_max = 1,
                                                  .precision = Precision::kRaw16,
                                                  .cache = &cache,
                                                  .load_by_layer = by_layer}));
  PAGODA_RETURN_IF_ERROR(cache.last_problem());
  return result;
}

absl::Status Bench::EvictHost() {
  ConnectionOptions connection;
  connection.daemon = daemon_->address();
  AdminConnection admin(connection);
  PAGODA_RETURN_IF_ERROR(admin.Call(&v1::Admin::Stub::Flush, v1::FlushRequest()).status());
  v1::EvictRequest request;
  request.mutable_filter()->set_tier(v1::TIER_HOST);
  return admin.Call(&v1::Admin::Stub::Evict, request).status();
}

absl::Status Bench::Pair(client::Client& client, bool evict, bool layers_first, OverlapRow& row) {
  GenerateResult whole;
  GenerateResult layers;
  for (const bool by_layer : {layers_first, !layers_first}) {
    PAGODA_RETURN_IF_ERROR(CheckInterrupted());
    if (evict) PAGODA_RETURN_IF_ERROR(EvictHost());
    PAGODA_ASSIGN_OR_RETURN(GenerateResult result, Generate(client, by_layer));
    if (result.hit.tokens !=
        options_.prefix_tokens / LlamaModel::kPageTokens * LlamaModel::kPageTokens) {
      return absl::InternalError(
          absl::StrFormat("%d tokens hit of %d", result.hit.tokens, options_.prefix_tokens));
    }
    (by_layer ? layers : whole) = std::move(result);
  }
  row.bytes = whole.hit.bytes;
  row.fetch.push_back(whole.load_seconds);
  row.compute.push_back(whole.prefill_seconds);
  row.ttft_whole.push_back(whole.ttft_seconds);
  row.ttft_by_layer.push_back(layers.ttft_seconds);
  row.saved.push_back((whole.ttft_seconds - layers.ttft_seconds) /
                      std::min(whole.load_seconds, whole.prefill_seconds));
  return absl::OkStatus();
}

absl::Status Bench::Measure(const std::string& path, double share) {
  OverlapRow row;
  row.path = path;
  const bool ssd = path == "ssd";
  const std::string target = daemon_->address();
  std::unique_ptr<SlowRelay> relay;  // outlives its client
  std::unique_ptr<client::Client> client;
  progress_(ssd ? "from SSD" : absl::StrFormat("over gRPC, fetching %g of computing", share));
  if (ssd) {
    PAGODA_ASSIGN_OR_RETURN(client, Connect(target, true));
  } else {
    const std::string socket = folder_->File("slow.sock");
    PAGODA_ASSIGN_OR_RETURN(relay, SlowRelay::Start(socket, target.substr(kUnix.size()), 10e9));
    PAGODA_ASSIGN_OR_RETURN(client, Connect(absl::StrCat(kUnix, socket), false));
  }
  // What does not count; it tells how long computing takes.
  OverlapRow warm_up;
  PAGODA_RETURN_IF_ERROR(Pair(*client, ssd, false, warm_up));
  if (!ssd) {
    row.bytes_per_second = static_cast<double>(warm_up.bytes) / (share * warm_up.compute.front());
    relay->set_rate(row.bytes_per_second);
  }
  for (int i = 0; i < options_.pairs; ++i) {
    PAGODA_RETURN_IF_ERROR(Pair(*client, ssd, i % 2 == 0, row));
  }
  report_.rows.push_back(std::move(row));
  return absl::OkStatus();
}

double Milliseconds(const std::vector<double>& seconds) { return Median(seconds) * 1e3; }

}  // namespace

absl::StatusOr<OverlapReport> RunOverlapBench(
    const OverlapOptions& options, const std::function<void(const std::string& step)>& progress) {
  return Bench(options, progress).Run();
}

std::string OverlapText(const OverlapReport& report) {
  TextTable table({{"path"},
                   {"MB/s", Align::kRight},
                   {"fetch ms", Align::kRight},
                   {"compute ms", Align::kRight},
                   {"TTFT whole", Align::kRight},
                   {"by layer", Align::kRight},
                   {"saved of the smaller", Align::kRight}});
  for (const OverlapRow& row : report.rows) {
    table.AddRow(
        {row.path,
         row.bytes_per_second > 0 ? absl::StrFormat("%.0f", row.bytes_per_second / 1e6) : "",
         absl::StrFormat("%.0f", Milliseconds(row.fetch)),
         absl::StrFormat("%.0f", Milliseconds(row.compute)),
         absl::StrFormat("%.0f", Milliseconds(row.ttft_whole)),
         absl::StrFormat("%.0f", Milliseconds(row.ttft_by_layer)),
         absl::StrFormat("%.2f", Median(row.saved))});
  }
  return absl::StrCat(report.model, ", ", report.prefix_tokens, " tokens cached, ",
                      report.tail_tokens, " computed, raw16\n", table.Render());
}

Json OverlapJson(const OverlapReport& report) {
  Json json;
  json["model"] = report.model;
  json["prefix_tokens"] = report.prefix_tokens;
  json["tail_tokens"] = report.tail_tokens;
  json["rows"] = Json::array();
  for (const OverlapRow& row : report.rows) {
    Json each;
    each["path"] = row.path;
    each["mb_per_second"] = row.bytes_per_second / 1e6;
    each["bytes"] = row.bytes;
    each["fetch_ms"] = Milliseconds(row.fetch);
    each["compute_ms"] = Milliseconds(row.compute);
    each["ttft_whole_ms"] = Milliseconds(row.ttft_whole);
    each["ttft_by_layer_ms"] = Milliseconds(row.ttft_by_layer);
    each["saved"] = Median(row.saved);
    json["rows"].push_back(std::move(each));
  }
  return json;
}

}  // namespace pagoda::cli
