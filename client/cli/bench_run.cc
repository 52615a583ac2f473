#include "client/cli/bench_run.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/channel.h"
#include "client/cli/bare_stream.h"
#include "client/cli/bench_pages.h"
#include "client/cli/interrupt.h"
#include "client/client.h"
#include "pagoda/v1/cache.grpc.pb.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

using client::Client;

constexpr absl::Duration kTransferTimeout = absl::Seconds(120);
constexpr int64_t kSinglePagesMax = 200;  // moved one at a time, for latencies

double Now() { return absl::ToDoubleSeconds(SystemClock().Monotonic()); }

absl::StatusOr<std::string> RandomRevision() {
  PAGODA_ASSIGN_OR_RETURN(const Sha256Digest random, RandomBytes32());
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(random.data()), 8));
}

// Runs `work(thread)` on every thread and returns the seconds until the last has ended.
absl::StatusOr<double> TimeThreads(int thread_count,
                                   const std::function<absl::Status(int thread)>& work) {
  std::vector<absl::Status> statuses(static_cast<size_t>(thread_count));
  const double start = Now();
  std::vector<std::thread> threads;
  for (int i = 1; i < thread_count; ++i) {
    threads.emplace_back([&, i] { statuses[static_cast<size_t>(i)] = work(i); });
  }
  statuses[0] = work(0);
  for (std::thread& thread : threads) thread.join();
  const double seconds = Now() - start;
  for (const absl::Status& status : statuses) PAGODA_RETURN_IF_ERROR(status);
  return seconds;
}

// One client with a chain of pages.
class Peer {
 public:
  static absl::StatusOr<std::unique_ptr<Peer>> Connect(const ConnectionOptions& connection,
                                                       const ModelSpec& model,
                                                       const BenchPages& pages) {
    client::ClientOptions options;
    options.target = connection.daemon;
    options.token = connection.token;
    options.tls = connection.tls;
    options.client_name = "pagoda-bench";
    options.shm_socket = "none";  // gRPC is what the bare stream is compared with
    options.model = model;
    options.control_timeout = absl::Seconds(connection.timeout_seconds);
    options.transfer_timeout = kTransferTimeout;
    options.push_queue_bytes_max = pages.payload_bytes() + (int64_t{64} << 20);
    std::unique_ptr<Peer> peer(new Peer(pages));
    PAGODA_ASSIGN_OR_RETURN(peer->client_, Client::Create(options));
    const absl::Status connected =
        peer->client_->WaitConnected(absl::Seconds(connection.timeout_seconds));
    if (!connected.ok()) return ExplainError(connected, connection);
    const std::optional<client::ScopeInfo> scope =
        peer->client_->FindScope({ScopeKind::kPrivate, ""});
    if (!scope.has_value() || !scope->may_push) {
      return absl::PermissionDeniedError(
          absl::StrCat("the daemon at ", connection.daemon,
                       " lets this caller push nothing; use another token"));
    }
    peer->scope_ = *scope;
    return peer;
  }

  // New keys: what was pushed before is another chain.
  void NewChain(uint64_t seed) {
    chain_ = pages_.MakeChain(scope_.root, seed);
    pusher_.reset();  // it belongs to the sequence
    if (!sequence_.is_zero()) client_->CloseSequence(sequence_);
    // A window over everything keeps the pages raw16 while they are measured.
    const auto tokens = static_cast<uint64_t>(chain_.keys.size() * chain_.token_ids[0].size());
    sequence_ = client_->OpenSequence(tokens, static_cast<uint32_t>(tokens), Precision::kRaw16);
  }

  absl::Status Push(int64_t begin, int64_t end) {
    if (pusher_ == nullptr) {
      PAGODA_ASSIGN_OR_RETURN(
          pusher_, client_->OpenPusher(sequence_, [this](const PageKey&, const auto& outcome) {
            absl::MutexLock lock(&mutex_);
            if (push_status_.ok()) push_status_ = outcome.status();
          }));
    }
    for (int64_t i = begin; i < end; ++i) {
      PAGODA_RETURN_IF_ERROR(pusher_->Push(pages_.Item(chain_, scope_, i)));
    }
    PAGODA_RETURN_IF_ERROR(pusher_->Flush(kTransferTimeout));
    absl::MutexLock lock(&mutex_);
    return push_status_;
  }

  absl::StatusOr<client::LookupResult> Lookup() {
    client::LookupQuery query;
    query.chains = {{scope_.id, chain_.keys}};
    return client_->Lookup(query);
  }
  absl::StatusOr<client::LookupResult> LookupAll() {
    PAGODA_ASSIGN_OR_RETURN(client::LookupResult hit, Lookup());
    if (hit.pages.size() == chain_.keys.size()) return hit;
    return absl::InternalError(
        absl::StrFormat("%d of %d pages that were pushed are there; does the daemon's host memory "
                        "hold them?",
                        hit.pages.size(), chain_.keys.size()));
  }
  absl::Status Fetch(const client::LookupResult& hit, const client::FetchOptions& options) {
    PAGODA_ASSIGN_OR_RETURN(const client::FetchResult result,
                            client_->Fetch(hit, chain_.keys, options));
    return result.status;
  }
  void Release(const client::LookupResult& hit) { client_->Release(hit.lease); }

  int64_t page_count() const { return pages_.page_count(); }

 private:
  explicit Peer(const BenchPages& pages) : pages_(pages) {}

  const BenchPages& pages_;
  client::ScopeInfo scope_;
  BenchPages::Chain chain_;
  client::SequenceId sequence_;
  absl::Mutex mutex_;
  absl::Status push_status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Client> client_;
  std::unique_ptr<client::Pusher> pusher_;  // last: ends before the client
};

class Bench {
 public:
  Bench(const BenchOptions& options, const ConnectionOptions& connection,
        const std::string& bare_address)
      : options_(options),
        connection_(connection),
        bare_address_(bare_address),
        pages_(options.shape, std::max<int64_t>(1, options.page_count / options.thread_count)) {}

  absl::StatusOr<BenchReport> Run(const std::function<void(const std::string& step)>& progress) {
    PAGODA_RETURN_IF_ERROR(Prepare());
    for (int round = 0; round < options_.round_count; ++round) {
      progress(absl::StrFormat("round %d of %d", round + 1, options_.round_count));
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      PAGODA_RETURN_IF_ERROR(RunRound(round));
    }
    progress("pages one at a time");
    PAGODA_RETURN_IF_ERROR(SinglePages());
    progress("lookups");
    PAGODA_RETURN_IF_ERROR(Lookups());
    return std::move(report_);
  }

 private:
  absl::Status Prepare();
  absl::Status RunRound(int round);
  absl::Status DaemonRound(int round);
  absl::Status BareRound();
  absl::Status SinglePages();
  absl::Status Lookups();
  absl::Status MeasureLookups(Peer& peer);
  // Makes room: the pages of this model go, if this caller may do that.
  void EvictOwn(const ModelSpec& model);
  using BareMove = absl::Status (BareClient::*)(const BareTransfer&);
  absl::StatusOr<double> BareRate(BareMove move, bool copy);

  double total_bytes() const {
    return static_cast<double>(pages_.payload_bytes()) * options_.thread_count;
  }

  const BenchOptions options_;
  const ConnectionOptions connection_;
  const std::string bare_address_;
  const BenchPages pages_;  // of one thread
  ModelSpec model_;
  std::unique_ptr<BareServer> bare_server_;
  std::vector<std::unique_ptr<BareClient>> bare_clients_;  // one per thread
  std::vector<kernels::AlignedBuffer> bare_memory_;        // one per thread: all its bytes
  std::vector<std::unique_ptr<Peer>> peers_;               // one per thread
  BenchReport report_;
};

absl::Status Bench::Prepare() {
  PAGODA_ASSIGN_OR_RETURN(const std::string revision, RandomRevision());
  model_ = BenchModel(options_.shape, revision);
  PAGODA_ASSIGN_OR_RETURN(bare_server_, BareServer::Start(bare_address_));
  for (int i = 0; i < options_.thread_count; ++i) {
    bare_clients_.push_back(std::make_unique<BareClient>(bare_server_->address()));
    bare_memory_.emplace_back(pages_.payload_bytes() + options_.message_bytes);
    PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<Peer> peer, Peer::Connect(connection_, model_, pages_));
    peers_.push_back(std::move(peer));
  }
  report_.shape = options_.shape;
  report_.page_count = pages_.page_count() * options_.thread_count;
  report_.page_bytes = RawPayloadBytes(options_.shape);
  report_.message_bytes = options_.message_bytes;
  report_.thread_count = options_.thread_count;
  // Connections open and memory is touched before anything counts.
  PAGODA_RETURN_IF_ERROR(BareRate(&BareClient::Receive, true).status());
  return BareRate(&BareClient::Send, true).status();
}

absl::Status Bench::RunRound(int round) {
  // Whoever comes second finds a warmer machine: take turns.
  if (round % 2 == 0) {
    PAGODA_RETURN_IF_ERROR(BareRound());
    return DaemonRound(round);
  }
  PAGODA_RETURN_IF_ERROR(DaemonRound(round));
  return BareRound();
}

absl::Status Bench::DaemonRound(int round) {
  for (int i = 0; i < options_.thread_count; ++i) {
    peers_[static_cast<size_t>(i)]->NewChain(static_cast<uint64_t>(round * 1000 + i));
  }
  PAGODA_ASSIGN_OR_RETURN(const double push_seconds,
                          TimeThreads(options_.thread_count, [this](int thread) {
                            Peer& peer = *peers_[static_cast<size_t>(thread)];
                            return peer.Push(0, peer.page_count());
                          }));
  report_.push.rates.push_back(total_bytes() / push_seconds);
  std::vector<client::LookupResult> hits;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    PAGODA_ASSIGN_OR_RETURN(client::LookupResult hit, peer->LookupAll());
    hits.push_back(std::move(hit));
  }
  PAGODA_ASSIGN_OR_RETURN(const double fetch_seconds,
                          TimeThreads(options_.thread_count, [this, &hits](int thread) {
                            const auto at = static_cast<size_t>(thread);
                            return peers_[at]->Fetch(hits[at], {});
                          }));
  report_.fetch.rates.push_back(total_bytes() / fetch_seconds);
  for (size_t i = 0; i < peers_.size(); ++i) peers_[i]->Release(hits[i]);
  EvictOwn(model_);
  return absl::OkStatus();
}

absl::StatusOr<double> Bench::BareRate(BareMove move, bool copy) {
  const int64_t count = std::max<int64_t>(1, pages_.payload_bytes() / options_.message_bytes);
  PAGODA_ASSIGN_OR_RETURN(
      const double seconds, TimeThreads(options_.thread_count, [&](int thread) {
        const auto at = static_cast<size_t>(thread);
        return (bare_clients_[at].get()->*move)({.message_bytes = options_.message_bytes,
                                                 .message_count = count,
                                                 .copy = copy,
                                                 .into = bare_memory_[at].data()});
      }));
  return static_cast<double>(options_.message_bytes * count * options_.thread_count) / seconds;
}

absl::Status Bench::BareRound() {
  for (const auto& [move, rounds] : {std::pair{&BareClient::Receive, &report_.fetch},
                                     std::pair{&BareClient::Send, &report_.push}}) {
    PAGODA_ASSIGN_OR_RETURN(const double copied, BareRate(move, true));
    PAGODA_ASSIGN_OR_RETURN(const double counted, BareRate(move, false));
    rounds->bare_rates.push_back(copied);
    rounds->bare_nocopy_rates.push_back(counted);
  }
  return absl::OkStatus();
}

absl::Status Bench::SinglePages() {
  Peer& peer = *peers_[0];
  peer.NewChain(~uint64_t{0});
  const int64_t count = std::min(kSinglePagesMax, peer.page_count());
  for (int64_t i = 0; i < peer.page_count(); ++i) {
    const double start = Now();
    PAGODA_RETURN_IF_ERROR(peer.Push(i, i + 1));
    report_.push.page_seconds.push_back(Now() - start);
  }
  PAGODA_ASSIGN_OR_RETURN(const client::LookupResult hit, peer.LookupAll());
  for (int64_t i = 0; i < count; ++i) {
    const double start = Now();
    PAGODA_RETURN_IF_ERROR(peer.Fetch(hit, {static_cast<uint32_t>(i), 1}));
    report_.fetch.page_seconds.push_back(Now() - start);
  }
  peer.Release(hit);
  EvictOwn(model_);
  return absl::OkStatus();
}

absl::Status Bench::Lookups() {
  // The smallest pages there are: a lookup does not look at their bytes.
  const kernels::PageShape shape{1, 1, 16, options_.shape.page_tokens};
  PAGODA_ASSIGN_OR_RETURN(const std::string revision, RandomRevision());
  const ModelSpec model = BenchModel(shape, revision);
  const BenchPages pages(shape, options_.lookup_keys);
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<Peer> peer,
                          Peer::Connect(connection_, model, pages));
  peer->NewChain(1);
  PAGODA_RETURN_IF_ERROR(peer->Push(0, options_.lookup_keys));
  PAGODA_RETURN_IF_ERROR(MeasureLookups(*peer));
  EvictOwn(model);
  return absl::OkStatus();
}

absl::Status Bench::MeasureLookups(Peer& peer) {
  const auto stub =
      v1::Cache::NewStub(client::MakeControlChannel(connection_.daemon, connection_.tls));
  const int64_t warm_up = 20;
  for (int64_t i = -warm_up; i < options_.lookup_rounds; ++i) {
    const double lookup_start = Now();
    PAGODA_ASSIGN_OR_RETURN(const client::LookupResult hit, peer.LookupAll());
    const double lookup_seconds = Now() - lookup_start;
    peer.Release(hit);
    report_.lookup.found_count = static_cast<int64_t>(hit.pages.size());

    // Gives back nothing: the daemon's way through gRPC, authentication and an empty answer. That
    // it may refuse an unnamed session makes no difference.
    grpc::ClientContext context;
    client::PrepareContext(context, connection_.token, absl::Seconds(connection_.timeout_seconds));
    v1::ReleaseResponse response;
    const double empty_start = Now();
    const absl::Status status = FromGrpc(stub->Release(&context, v1::ReleaseRequest(), &response));
    const double empty_seconds = Now() - empty_start;
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
        absl::IsUnauthenticated(status)) {
      return ExplainError(status, connection_);
    }
    if (i < 0) continue;
    report_.lookup.seconds.push_back(lookup_seconds);
    report_.lookup.empty_seconds.push_back(empty_seconds);
  }
  report_.lookup.key_count = options_.lookup_keys;
  return absl::OkStatus();
}

void Bench::EvictOwn(const ModelSpec& model) {
  v1::EvictRequest request;
  request.mutable_filter()->set_identity(std::string(IdentityOf(model).view()));
  // Without the right to do it the daemon's own eviction makes room.
  (void)AdminConnection(connection_).Call(&v1::Admin::Stub::Evict, request);
}

}  // namespace

absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const ConnectionOptions& connection,
                                     const std::string& bare_address,
                                     const std::function<void(const std::string& step)>& progress) {
  return Bench(options, connection, bare_address).Run(progress);
}

}  // namespace pagoda::cli
