#include "client/cli/transport_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/bare_stream.h"
#include "client/cli/bench_pages.h"
#include "client/cli/interrupt.h"
#include "client/cli/self_daemon.h"
#include "client/cli/temp_folder.h"
#include "client/cli/units.h"
#include "client/client.h"
#include "client/push_memory.h"
#include "kernels/aligned_buffer.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

using client::Client;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kPageBytesMax = int64_t{8} << 20;
constexpr int64_t kMessageBytes = 1 << 20;
constexpr int64_t kHostBytes = TransportOptions().touch_bytes;
constexpr int64_t kPushChainsBytes = kHostBytes / 8;  // of all clients: their ends stay in memory

double Now() { return absl::ToDoubleSeconds(SystemClock().Monotonic()); }

// A model whose raw16 pages of 64 tokens have that many bytes: 256 for each layer, head, channel.
kernels::PageShape ShapeOf(int64_t page_bytes) {
  kernels::PageShape shape{static_cast<int32_t>(page_bytes / (256 * 4 * 64)), 4, 64, 64};
  while (shape.layer_count > 32 && shape.layer_count % 2 == 0) {
    shape.layer_count /= 2;
    (shape.head_count < 8 ? shape.head_count : shape.head_dim) *= 2;
  }
  return shape;
}

enum class Path { kMemcpy, kShmMap, kShmCopy, kBareUnix, kGrpcUnix, kBareTcp, kGrpcTcp };

absl::string_view PathName(Path path) {
  switch (path) {
    case Path::kMemcpy:
      return "memcpy";
    case Path::kShmMap:
      return "shm-map";
    case Path::kShmCopy:
      return "shm-copy";
    case Path::kBareUnix:
      return "bare-unix";
    case Path::kGrpcUnix:
      return "grpc-unix";
    case Path::kBareTcp:
      return "bare-tcp";
    case Path::kGrpcTcp:
      return "grpc-tcp";
  }
  return "unknown";
}

std::optional<Path> BoundOf(Path path) {
  switch (path) {
    case Path::kShmMap:
    case Path::kShmCopy:
      return Path::kMemcpy;
    case Path::kGrpcUnix:
      return Path::kBareUnix;
    case Path::kGrpcTcp:
      return Path::kBareTcp;
    default:
      return std::nullopt;
  }
}

// One client by one path, with a lease on the chain that all of them read.
class Reader {
 public:
  static absl::StatusOr<std::unique_ptr<Reader>> Connect(const std::string& target, bool shm,
                                                         const ModelSpec& model) {
    client::ClientOptions options;
    options.target = target;
    options.client_name = "pagoda-bench";
    options.shm_socket = shm ? "" : "none";
    options.model = model;
    options.control_timeout = kTimeout;
    options.transfer_timeout = kTimeout;
    options.push_queue_bytes_max = int64_t{1} << 30;
    auto reader = std::unique_ptr<Reader>(new Reader());
    PAGODA_ASSIGN_OR_RETURN(reader->client_, Client::Create(options));
    PAGODA_RETURN_IF_ERROR(reader->client_->WaitConnected(kTimeout));
    reader->scope_ = *reader->client_->FindScope({ScopeKind::kPrivate, ""});
    return reader;
  }

  Client& client() { return *client_; }
  const client::ScopeInfo& scope() const { return scope_; }
  const client::LookupResult& hit() const { return hit_; }

  // A fresh lease on all of those keys.
  absl::Status Lease(const std::vector<PageKey>& keys) {
    EndLease();
    client::LookupQuery query;
    query.chains = {{scope_.id, keys}};
    PAGODA_ASSIGN_OR_RETURN(hit_, client_->Lookup(query));
    if (hit_.pages.size() == keys.size()) return absl::OkStatus();
    return absl::InternalError(absl::StrFormat("%d of %d pages that were pushed are there",
                                               hit_.pages.size(), keys.size()));
  }
  void EndLease() {
    if (!hit_.lease.is_zero()) client_->Release(hit_.lease);
    hit_ = {};
  }

  // Pushes and waits for the answers.
  absl::Status Push(const BenchPages& pages, const BenchPages::Chain& chain, int64_t begin,
                    int64_t count, bool reserve) {
    if (pusher_ == nullptr) {
      PAGODA_ASSIGN_OR_RETURN(pusher_,
                              client_->OpenPusher({}, [this](const PageKey&, const auto& outcome) {
                                absl::MutexLock lock(&mutex_);
                                if (push_status_.ok()) push_status_ = outcome.status();
                              }));
    }
    for (int64_t i = begin; i < begin + count; ++i) {
      client::PushItem item = pages.Item(chain, scope_, i);
      if (reserve) client::MoveToReserved(*pusher_, item);
      PAGODA_RETURN_IF_ERROR(pusher_->Push(std::move(item)));
    }
    PAGODA_RETURN_IF_ERROR(pusher_->Flush(kTimeout));
    absl::MutexLock lock(&mutex_);
    return push_status_;
  }

 private:
  Reader() = default;

  client::ScopeInfo scope_;
  client::LookupResult hit_;
  absl::Mutex mutex_;
  absl::Status push_status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Client> client_;
  std::unique_ptr<client::Pusher> pusher_;  // last: ends before the client
};

// Everything one thread of a cell works with.
struct Worker {
  std::unique_ptr<Reader> shm;
  std::unique_ptr<Reader> grpc_unix;
  std::unique_ptr<Reader> grpc_tcp;
  std::unique_ptr<BareClient> bare_unix;
  std::unique_ptr<BareClient> bare_tcp;
  std::unique_ptr<client::MappedPages> mapped;  // the whole chain: what memcpy reads
  kernels::AlignedBuffer memory;                // where objects go
  int64_t next = 0;                             // object of the chain
  // What it pushes, and how many pages of that it has.
  BenchPages::Chain push_chain;
  int64_t pushed = 0;
  BenchPages::Chain tcp_push_chain;
  int64_t tcp_pushed = 0;
};

class Bench {
 public:
  Bench(const TransportOptions& options, const std::function<void(const std::string&)>& progress)
      : options_(options), progress_(progress) {}

  absl::StatusOr<TransportReport> Run() {
    PAGODA_RETURN_IF_ERROR(StartServers());
    for (const int64_t bytes : options_.bytes) PAGODA_RETURN_IF_ERROR(RunSize(bytes));
    return std::move(report_);
  }

 private:
  absl::Status StartServers();
  absl::Status TouchMemory(const std::string& address);
  absl::Status RunSize(int64_t bytes);
  absl::Status RunClients(int client_count);
  absl::Status RunOp(const std::string& op, const std::vector<Path>& paths);
  absl::Status MapMany();
  absl::StatusOr<std::unique_ptr<Worker>> MakeWorker(int index);
  absl::Status PushChain(Reader& reader);
  absl::Status NewLeases(Worker& worker);
  // Every client does objects until the slice is over; seconds of each are added to the row.
  absl::StatusOr<double> Measure(const std::string& op, Path path, TransportRow& row);
  absl::Status Fetch(Path path, Worker& worker);
  absl::Status Push(Path path, Worker& worker);
  absl::Status Copy(Worker& worker, uint32_t begin);
  absl::Status CheckFirstPage(Worker& worker);
  client::PageTarget TargetIn(Worker& worker) const;

  const TransportOptions options_;
  const std::function<void(const std::string&)> progress_;
  TransportReport report_;
  std::unique_ptr<SelfDaemon> unix_daemon_;
  std::unique_ptr<SelfDaemon> tcp_daemon_;
  std::optional<TempFolder> folder_;
  std::unique_ptr<BareServer> bare_unix_;
  std::unique_ptr<BareServer> bare_tcp_;
  uint64_t next_seed_ = 1;
  // Of one size.
  int64_t bytes_ = 0;
  int64_t page_bytes_ = 0;
  int64_t stored_page_bytes_ = 0;
  int64_t pages_per_object_ = 0;
  int64_t objects_ = 0;
  ModelSpec model_;
  std::unique_ptr<BenchPages> pages_;
  std::unique_ptr<BenchPages> push_pages_;
  BenchPages::Chain chain_unix_;
  BenchPages::Chain chain_tcp_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

absl::Status Bench::StartServers() {
  progress_("starting daemons");
  SelfDaemonOptions options;
  options.host_bytes = kHostBytes;
  PAGODA_ASSIGN_OR_RETURN(unix_daemon_, SelfDaemon::Start(options));
  options.socket = SocketKind::kTcp;
  PAGODA_ASSIGN_OR_RETURN(tcp_daemon_, SelfDaemon::Start(options));
  PAGODA_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Make("pagoda-bench-"));
  folder_.emplace(std::move(folder));
  PAGODA_ASSIGN_OR_RETURN(bare_unix_,
                          BareServer::Start(absl::StrCat("unix:", folder_->File("bare.sock"))));
  PAGODA_ASSIGN_OR_RETURN(bare_tcp_, BareServer::Start("127.0.0.1:0"));
  progress_("touching the daemons' memory");
  for (const SelfDaemon* daemon : {unix_daemon_.get(), tcp_daemon_.get()}) {
    PAGODA_RETURN_IF_ERROR(TouchMemory(daemon->address()));
  }
  return absl::OkStatus();
}

// A daemon that has run for a while has no new memory to take.
absl::Status Bench::TouchMemory(const std::string& address) {
  const kernels::PageShape shape = ShapeOf(kPageBytesMax);
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader,
                          Reader::Connect(address, true, BenchModel(shape, "warm-up")));
  // Short chains: one as long as memory would have to give up its own end.
  const BenchPages pages(shape, 8);
  const auto chain_count = static_cast<uint64_t>(options_.touch_bytes / pages.payload_bytes());
  for (uint64_t seed = 1; seed <= chain_count; ++seed) {
    PAGODA_RETURN_IF_ERROR(CheckInterrupted());
    const BenchPages::Chain chain = pages.MakeChain(reader->scope().root, seed);
    PAGODA_RETURN_IF_ERROR(reader->Push(pages, chain, 0, pages.page_count(), /*reserve=*/false));
  }
  return absl::OkStatus();
}

absl::Status Bench::RunSize(int64_t bytes) {
  bytes_ = bytes;
  page_bytes_ = std::min(bytes, kPageBytesMax);
  pages_per_object_ = bytes / page_bytes_;
  objects_ = std::max<int64_t>(1, options_.working_set_bytes / bytes);
  const kernels::PageShape shape = ShapeOf(page_bytes_);
  PAGODA_ASSIGN_OR_RETURN(const Sha256Digest random, RandomBytes32());
  model_ = BenchModel(shape, absl::BytesToHexString(absl::string_view(
                                 reinterpret_cast<const char*>(random.data()), 8)));
  pages_ = std::make_unique<BenchPages>(shape, objects_ * pages_per_object_);
  const int64_t chain_pages = kPushChainsBytes / page_bytes_ / options_.clients.back();
  push_pages_ = std::make_unique<BenchPages>(
      shape, std::clamp<int64_t>(chain_pages, pages_per_object_, 64 * pages_per_object_));
  PAGODA_CHECK(RawPayloadBytes(shape) == page_bytes_);          // sizes are powers of two
  stored_page_bytes_ = AlignUp(page_bytes_, 4096) + 4096 * 64;  // padding of segments
  workers_.clear();
  for (const int count : options_.clients) PAGODA_RETURN_IF_ERROR(RunClients(count));
  if (bytes == options_.bytes.front()) PAGODA_RETURN_IF_ERROR(MapMany());
  workers_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Worker>> Bench::MakeWorker(int index) {
  auto worker = std::make_unique<Worker>();
  PAGODA_ASSIGN_OR_RETURN(worker->shm, Reader::Connect(unix_daemon_->address(), true, model_));
  PAGODA_ASSIGN_OR_RETURN(worker->grpc_unix,
                          Reader::Connect(unix_daemon_->address(), false, model_));
  PAGODA_ASSIGN_OR_RETURN(worker->grpc_tcp, Reader::Connect(tcp_daemon_->address(), false, model_));
  worker->bare_unix = std::make_unique<BareClient>(bare_unix_->address());
  worker->bare_tcp = std::make_unique<BareClient>(bare_tcp_->address());
  if (workers_.empty()) {
    chain_unix_ = pages_->MakeChain(worker->shm->scope().root, 0);
    chain_tcp_ = pages_->MakeChain(worker->grpc_tcp->scope().root, 0);
  }
  // Where objects go, one after another: together more than caches hold, all of it touched.
  const int64_t share = options_.working_set_bytes / options_.clients.back();
  const int64_t room = std::max<int64_t>(1, share / bytes_) * pages_per_object_;
  worker->memory = kernels::AlignedBuffer(room * stored_page_bytes_);
  worker->next = index * objects_ / options_.clients.back();
  return worker;
}

absl::Status Bench::RunClients(int client_count) {
  while (workers_.size() < static_cast<size_t>(client_count)) {
    PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker,
                            MakeWorker(static_cast<int>(workers_.size())));
    workers_.push_back(std::move(worker));
  }
  workers_.resize(static_cast<size_t>(client_count));
  const std::string what = absl::StrFormat("%s, %d clients", FormatBytes(bytes_), client_count);
  progress_(what + ": fetch");
  PAGODA_RETURN_IF_ERROR(
      RunOp("fetch", {Path::kMemcpy, Path::kShmMap, Path::kShmCopy, Path::kBareUnix,
                      Path::kGrpcUnix, Path::kBareTcp, Path::kGrpcTcp}));
  progress_(what + ": push");
  return RunOp("push", {Path::kMemcpy, Path::kShmCopy, Path::kBareUnix, Path::kGrpcUnix,
                        Path::kBareTcp, Path::kGrpcTcp});
}

absl::Status Bench::PushChain(Reader& reader) {
  const BenchPages::Chain& chain =
      &reader == workers_[0]->grpc_tcp.get() ? chain_tcp_ : chain_unix_;
  return reader.Push(*pages_, chain, 0, pages_->page_count(), /*reserve=*/false);
}

absl::Status Bench::NewLeases(Worker& worker) {
  PAGODA_RETURN_IF_ERROR(worker.shm->Lease(chain_unix_.keys));
  PAGODA_RETURN_IF_ERROR(worker.grpc_unix->Lease(chain_unix_.keys));
  PAGODA_RETURN_IF_ERROR(worker.grpc_tcp->Lease(chain_tcp_.keys));
  PAGODA_ASSIGN_OR_RETURN(worker.mapped,
                          worker.shm->client().Map(worker.shm->hit(), chain_unix_.keys, {}));
  return absl::OkStatus();
}

absl::Status Bench::RunOp(const std::string& op, const std::vector<Path>& paths) {
  std::vector<TransportRow> rows(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    rows[i].path = std::string(PathName(paths[i]));
    rows[i].op = op;
    rows[i].bytes = bytes_;
    rows[i].clients = static_cast<int>(workers_.size());
  }
  // What is read stands in memory, whatever was pushed since.
  PAGODA_RETURN_IF_ERROR(PushChain(*workers_[0]->shm));
  PAGODA_RETURN_IF_ERROR(PushChain(*workers_[0]->grpc_tcp));
  for (int round = 0; round < options_.rounds; ++round) {
    PAGODA_RETURN_IF_ERROR(CheckInterrupted());
    for (const auto& worker : workers_) PAGODA_RETURN_IF_ERROR(NewLeases(*worker));
    if (op == "fetch" && round == 0) PAGODA_RETURN_IF_ERROR(CheckFirstPage(*workers_[0]));
    for (size_t i = 0; i < paths.size(); ++i) {
      PAGODA_ASSIGN_OR_RETURN(const double rate, Measure(op, paths[i], rows[i]));
      rows[i].rates.push_back(rate);
    }
    for (const auto& worker : workers_) {
      worker->mapped.reset();
      for (Reader* reader : {worker->shm.get(), worker->grpc_unix.get(), worker->grpc_tcp.get()}) {
        reader->EndLease();
      }
    }
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::optional<Path> bound = BoundOf(paths[i]);
    if (!bound.has_value()) continue;
    const auto at = std::find(paths.begin(), paths.end(), *bound) - paths.begin();
    rows[i].bound = std::string(PathName(*bound));
    rows[i].bound_rates = rows[static_cast<size_t>(at)].rates;
  }
  for (const auto& worker : workers_) {
    report_.staging_fallbacks += worker->shm->client().stats().shm_push_fallbacks +
                                 worker->shm->client().stats().shm_fallbacks;
  }
  for (TransportRow& row : rows) report_.rows.push_back(std::move(row));
  return absl::OkStatus();
}

absl::StatusOr<double> Bench::Measure(const std::string& op, Path path, TransportRow& row) {
  struct Done {
    absl::Status status;
    std::vector<double> seconds;
  };
  std::vector<Done> done(workers_.size());
  const bool push = op == "push";
  const double start = Now();
  const double end = start + absl::ToDoubleSeconds(options_.slice);
  const auto work = [&](size_t index) {
    Worker& worker = *workers_[index];
    do {
      const double begin = Now();
      done[index].status = push ? Push(path, worker) : Fetch(path, worker);
      if (!done[index].status.ok()) return;
      done[index].seconds.push_back(Now() - begin);
    } while (Now() < end);
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < workers_.size(); ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  const double seconds = Now() - start;
  int64_t objects = 0;
  for (const Done& each : done) {
    PAGODA_RETURN_IF_ERROR(each.status);
    objects += static_cast<int64_t>(each.seconds.size());
    row.seconds.insert(row.seconds.end(), each.seconds.begin(), each.seconds.end());
  }
  return static_cast<double>(objects * bytes_) / seconds;
}

// Objects one after another through the worker's memory.
client::PageTarget Bench::TargetIn(Worker& worker) const {
  return [this, &worker](uint32_t page, const PageHeader& header) {
    const int64_t room = worker.memory.size() / stored_page_bytes_;
    const int64_t slot = (worker.next * pages_per_object_ + page) % room;
    std::byte* at = worker.memory.data() + slot * stored_page_bytes_;
    std::vector<MutableByteSpan> spans;
    spans.reserve(header.segments.size());
    for (const SegmentEntry& segment : header.segments) {
      spans.emplace_back(at, static_cast<size_t>(segment.stored_bytes()));
      at += segment.stored_bytes();
    }
    return spans;
  };
}

absl::Status Bench::Copy(Worker& worker, uint32_t begin) {
  const client::PageTarget target = TargetIn(worker);
  for (uint32_t i = 0; i < pages_per_object_; ++i) {
    PAGODA_ASSIGN_OR_RETURN(const client::MappedPage page, worker.mapped->Page(begin + i));
    const std::vector<MutableByteSpan> to = target(i, page.header);
    for (size_t s = 0; s < to.size(); ++s) {
      std::memcpy(to[s].data(), page.segments[s].data(), page.segments[s].size());
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::Fetch(Path path, Worker& worker) {
  const int64_t object = worker.next++ % objects_;
  const auto begin = static_cast<uint32_t>(object * pages_per_object_);
  const client::FetchOptions options{.page_begin = begin,
                                     .page_count = static_cast<uint32_t>(pages_per_object_),
                                     .target = TargetIn(worker)};
  const auto fetch = [&](Reader& reader, const BenchPages::Chain& chain) -> absl::Status {
    PAGODA_ASSIGN_OR_RETURN(const client::FetchResult result,
                            reader.client().Fetch(reader.hit(), chain.keys, options));
    return result.status;
  };
  const BareTransfer bare{.message_bytes = std::min(bytes_, kMessageBytes),
                          .message_count = std::max<int64_t>(1, bytes_ / kMessageBytes),
                          .into = worker.memory.data()};
  switch (path) {
    case Path::kMemcpy:
      return Copy(worker, begin);
    case Path::kShmMap: {
      const client::FetchOptions map{.page_begin = begin, .page_count = options.page_count};
      PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<client::MappedPages> mapped,
                              worker.shm->client().Map(worker.shm->hit(), chain_unix_.keys, map));
      PAGODA_RETURN_IF_ERROR(mapped->status());
      for (size_t i = 0; i < mapped->size(); ++i) PAGODA_RETURN_IF_ERROR(mapped->Page(i).status());
      return mapped->StillValid() ? absl::OkStatus() : absl::AbortedError("a mapped page is gone");
    }
    case Path::kShmCopy:
      return fetch(*worker.shm, chain_unix_);
    case Path::kGrpcUnix:
      return fetch(*worker.grpc_unix, chain_unix_);
    case Path::kGrpcTcp:
      return fetch(*worker.grpc_tcp, chain_tcp_);
    case Path::kBareUnix:
      return worker.bare_unix->Receive(bare);
    case Path::kBareTcp:
      return worker.bare_tcp->Receive(bare);
  }
  return absl::InternalError("no such path");
}

absl::Status Bench::Push(Path path, Worker& worker) {
  const BareTransfer bare{.message_bytes = std::min(bytes_, kMessageBytes),
                          .message_count = std::max<int64_t>(1, bytes_ / kMessageBytes),
                          .into = worker.memory.data()};
  const auto push = [&](Reader& reader, bool reserve) -> absl::Status {
    const int64_t left = push_pages_->page_count() - worker.pushed;
    if (worker.push_chain.keys.empty() || left < pages_per_object_) {
      uint64_t seed;
      {
        static absl::Mutex seeds(absl::kConstInit);
        absl::MutexLock lock(&seeds);
        seed = next_seed_++;
      }
      worker.push_chain = push_pages_->MakeChain(reader.scope().root, seed);
      worker.pushed = 0;
    }
    const int64_t begin = worker.pushed;
    worker.pushed += pages_per_object_;
    return reader.Push(*push_pages_, worker.push_chain, begin, pages_per_object_, reserve);
  };
  switch (path) {
    case Path::kMemcpy:
      return Copy(worker, static_cast<uint32_t>(worker.next++ % objects_ * pages_per_object_));
    case Path::kShmCopy:
      return push(*worker.shm, true);
    case Path::kGrpcUnix:
      return push(*worker.grpc_unix, false);
    case Path::kGrpcTcp: {
      // The other daemon has other keys.
      std::swap(worker.push_chain, worker.tcp_push_chain);
      std::swap(worker.pushed, worker.tcp_pushed);
      const absl::Status status = push(*worker.grpc_tcp, false);
      std::swap(worker.push_chain, worker.tcp_push_chain);
      std::swap(worker.pushed, worker.tcp_pushed);
      return status;
    }
    case Path::kBareUnix:
      return worker.bare_unix->Send(bare);
    case Path::kBareTcp:
      return worker.bare_tcp->Send(bare);
    case Path::kShmMap:
      break;
  }
  return absl::InternalError("no such path");
}

// That it is pages that travel.
absl::Status Bench::CheckFirstPage(Worker& worker) {
  for (const auto& [reader, chain] :
       {std::pair{worker.shm.get(), &chain_unix_}, std::pair{worker.grpc_tcp.get(), &chain_tcp_}}) {
    PAGODA_ASSIGN_OR_RETURN(const client::FetchResult result,
                            reader->client().Fetch(reader->hit(), chain->keys, {.page_count = 1}));
    PAGODA_RETURN_IF_ERROR(result.status);
    if (result.pages.empty() || !pages_->IsItem(result.pages[0], 0)) {
      return absl::DataLossError("a fetched page is not the one that was pushed");
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::MapMany() {
  progress_(absl::StrFormat("mapping %d pages", options_.map_pages));
  const BenchPages pages(ShapeOf(page_bytes_), options_.map_pages);
  Reader& reader = *workers_[0]->shm;
  const BenchPages::Chain chain = pages.MakeChain(reader.scope().root, ~uint64_t{0});
  PAGODA_RETURN_IF_ERROR(reader.Push(pages, chain, 0, pages.page_count(), /*reserve=*/false));
  TransportRow row;
  row.path = std::string(PathName(Path::kShmMap));
  row.op = "fetch";
  row.bytes = page_bytes_ * pages.page_count();
  row.clients = 1;
  for (int i = -10; i < 200; ++i) {
    PAGODA_RETURN_IF_ERROR(reader.Lease(chain.keys));  // a client remembers where those of one lie
    const double begin = Now();
    PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<client::MappedPages> mapped,
                            reader.client().Map(reader.hit(), chain.keys, {}));
    const double seconds = Now() - begin;
    PAGODA_RETURN_IF_ERROR(mapped->status());
    if (!mapped->StillValid()) return absl::AbortedError("a mapped page is gone");
    if (i < 0) continue;
    row.seconds.push_back(seconds);
    row.rates.push_back(static_cast<double>(row.bytes) / seconds);
  }
  reader.EndLease();
  report_.rows.push_back(std::move(row));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TransportReport> RunTransportBench(
    const TransportOptions& options, const std::function<void(const std::string& step)>& progress) {
  return Bench(options, progress).Run();
}

}  // namespace pagoda::cli
