#include "client/cli/live_replay.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench_pages.h"
#include "client/cli/interrupt.h"
#include "client/client.h"
#include "storage/base/clock.h"
#include "storage/base/digest.h"
#include "storage/base/status_macros.h"
#include "storage/replay/replay_walk.h"

namespace pagoda::cli {
namespace {

using client::Client;

constexpr absl::Duration kTransferTimeout = absl::Seconds(60);
constexpr int64_t kDistinctPayloads = 32;
constexpr uint32_t kVocabulary = 50000;

double Now() { return absl::ToDoubleSeconds(SystemClock().Monotonic()); }

class LiveReplay {
 public:
  LiveReplay(const replay::Trace& trace, const LiveOptions& options)
      : trace_(trace),
        options_(options),
        pages_(options.shape, kDistinctPayloads),
        keys_(size_t{trace.id_max()} + 1) {}

  absl::Status Connect(const ConnectionOptions& connection) {
    PAGODA_ASSIGN_OR_RETURN(const Sha256Digest random, RandomBytes32());
    const absl::string_view bytes(reinterpret_cast<const char*>(random.data()), 8);
    client::ClientOptions options;
    options.target = connection.daemon;
    options.token = connection.token;
    options.tls = connection.tls;
    options.client_name = "pagoda-replay";
    options.model = BenchModel(options_.shape, absl::BytesToHexString(bytes));
    options.page_tokens = static_cast<uint32_t>(options_.shape.page_tokens);
    options.control_timeout = absl::Seconds(connection.timeout_seconds);
    options.transfer_timeout = kTransferTimeout;
    PAGODA_ASSIGN_OR_RETURN(client_, Client::Create(options));
    const absl::Status connected =
        client_->WaitConnected(absl::Seconds(connection.timeout_seconds));
    if (!connected.ok()) return ExplainError(connected, connection);
    const std::optional<client::ScopeInfo> scope = client_->FindScope({ScopeKind::kPrivate, ""});
    if (!scope.has_value() || !scope->may_push) {
      return absl::PermissionDeniedError(
          absl::StrCat("the daemon at ", connection.daemon,
                       " lets this caller push nothing; use another token"));
    }
    scope_ = *scope;
    const uint32_t batch_pages_max = client_->server_info()->batch_pages_max;
    for (const replay::TraceRequest& request : trace_.requests()) {
      if (request.block_count <= batch_pages_max) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("%s has a request of %d blocks; the daemon looks up at most %d pages at "
                          "once: replay a trace with shorter requests or larger blocks",
                          trace_.name(), request.block_count, batch_pages_max));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<LiveResult> Run(const std::function<void(double share)>& progress) {
    const double start = Now();
    const size_t count = trace_.requests().size();
    for (size_t i = 0; i < count; ++i) {
      const replay::TraceRequest& request = trace_.requests()[i];
      if (options_.speed > 0) WaitUntil(start + request.seconds / options_.speed);
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      PAGODA_RETURN_IF_ERROR(RunRequest(request));
      progress(static_cast<double>(i + 1) / static_cast<double>(count));
    }
    result_.push_failures = push_failures_->load(std::memory_order_relaxed);
    result_.seconds = Now() - start;
    result_.path_lines = client_->stats().PathLines();
    return result_;
  }

 private:
  void WaitUntil(double when) {
    const double wait_seconds = when - Now();
    if (wait_seconds > 0) SleepUnlessInterrupted(absl::Seconds(wait_seconds));
    result_.late_seconds_max = std::max(result_.late_seconds_max, -wait_seconds);
  }

  absl::Status RunRequest(const replay::TraceRequest& request) {
    ++result_.requests;
    result_.blocks += request.block_count;
    if (request.block_count == 0) return absl::OkStatus();
    const BenchPages::Chain chain = ChainOf(request);
    const uint64_t tokens = chain.keys.size() * static_cast<uint64_t>(options_.shape.page_tokens);
    const client::SequenceId sequence = client_->OpenSequence(tokens, 0, Precision::kQ4);
    client::LookupQuery query;
    query.chains = {{scope_.id, chain.keys}};
    query.precision_min = Precision::kQ4;
    query.fidelity_min = Precision::kQ4;
    query.sequence_id = sequence;
    PAGODA_ASSIGN_OR_RETURN(const client::LookupResult hit, client_->Lookup(query));
    if (!hit.pages.empty()) {
      result_.block_hits += static_cast<int64_t>(hit.pages.size());
      const absl::StatusOr<client::FetchResult> fetched = client_->Fetch(hit, chain.keys, {});
      client_->Release(hit.lease);
      if (!fetched.ok() || !fetched->status.ok()) ++result_.fetch_failures;
      if (fetched.ok()) PAGODA_RETURN_IF_ERROR(Take(*fetched, chain));
    }
    const absl::Status pushed = PushRest(chain, hit.pages.size(), sequence);
    client_->CloseSequence(sequence);
    return pushed;
  }

  absl::Status Take(const client::FetchResult& fetched, const BenchPages::Chain& chain) {
    for (size_t i = 0; i < fetched.pages.size(); ++i) {
      const client::FetchedPage& page = fetched.pages[i];
      if (PrecisionOf(page.header.planes) == Precision::kRaw16 &&
          !pages_.IsItem(page, static_cast<int64_t>(i))) {
        return absl::DataLossError(absl::StrFormat(
            "page %s came back with other bytes than were pushed", chain.keys[i].hex()));
      }
    }
    result_.fetched_pages += static_cast<int64_t>(fetched.pages.size());
    result_.fetched_bytes += fetched.bytes;
    return absl::OkStatus();
  }

  absl::Status PushRest(const BenchPages::Chain& chain, size_t begin,
                        const client::SequenceId& sequence) {
    if (begin == chain.keys.size()) return absl::OkStatus();
    PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<client::Pusher> pusher,
                            client_->OpenPusher(sequence, [failures = push_failures_](
                                                              const PageKey&, const auto& outcome) {
                              if (!outcome.ok()) failures->fetch_add(1, std::memory_order_relaxed);
                            }));
    for (size_t i = begin; i < chain.keys.size(); ++i) {
      // A full queue is emptied once; what is refused then is not stored, nor what follows it.
      const auto index = static_cast<int64_t>(i);
      absl::Status queued = pusher->Push(pages_.Item(chain, scope_, index));
      if (absl::IsResourceExhausted(queued) && pusher->Flush(kTransferTimeout).ok()) {
        queued = pusher->Push(pages_.Item(chain, scope_, index));
      }
      if (queued.ok()) continue;
      push_failures_->fetch_add(static_cast<int64_t>(chain.keys.size() - i),
                                std::memory_order_relaxed);
      break;
    }
    const absl::Status flushed = pusher->Flush(kTransferTimeout);
    return absl::IsDeadlineExceeded(flushed) ? flushed : absl::OkStatus();
  }

  // The same block has the same tokens, and so, after the same blocks, the same key.
  BenchPages::Chain ChainOf(const replay::TraceRequest& request) {
    BenchPages::Chain chain;
    PageKey parent = scope_.root;
    for (const replay::BlockRun& run : trace_.runs(request)) {
      for (uint32_t id = run.first; id < run.first + run.count; ++id) {
        std::vector<uint32_t> tokens(static_cast<size_t>(options_.shape.page_tokens));
        uint32_t seed = id;
        for (uint32_t& token : tokens) {
          const uint64_t bits = replay::FingerprintOf(seed);
          seed = static_cast<uint32_t>(bits);
          token = static_cast<uint32_t>(bits >> 32) % kVocabulary;
        }
        if (keys_[id].is_zero()) keys_[id] = KeyOf(parent, tokens);
        parent = keys_[id];
        chain.keys.push_back(parent);
        chain.token_ids.push_back(std::move(tokens));
      }
    }
    return chain;
  }

  const replay::Trace& trace_;
  const LiveOptions options_;
  const BenchPages pages_;
  std::vector<PageKey> keys_;  // by block id, as far as known
  client::ScopeInfo scope_;
  LiveResult result_;
  // Counted on threads of the client's library.
  const std::shared_ptr<std::atomic<int64_t>> push_failures_ =
      std::make_shared<std::atomic<int64_t>>(0);
  std::unique_ptr<Client> client_;
};

}  // namespace

absl::StatusOr<LiveResult> ReplayLive(const replay::Trace& trace,
                                      const ConnectionOptions& connection,
                                      const LiveOptions& options,
                                      const std::function<void(double share)>& progress) {
  LiveReplay live(trace, options);
  PAGODA_RETURN_IF_ERROR(live.Connect(connection));
  return live.Run(progress);
}

}  // namespace pagoda::cli
