#include "client/client.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/channel.h"
#include "client/combined_fetch.h"
#include "client/device_channel.h"
#include "client/executor.h"
#include "client/fetch_call.h"
#include "client/messages.h"
#include "client/push_stream.h"
#include "client/pusher.h"
#include "client/session.h"
#include "client/shm_channel.h"
#include "client/shm_fetch.h"
#include "client/shm_push.h"
#include "proto/wire.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

// How often the background thread looks at heartbeats, stuck pushes and lost sessions.
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr uint32_t kLocatedAhead = 1024;  // pages of a lease that are asked for at once
constexpr size_t kLocatedMax = 256;       // leases

template <typename Id>
Id RandomId() {
  const absl::StatusOr<Sha256Digest> random = RandomBytes32();
  PAGODA_CHECK(random.ok());
  Id id;
  std::copy_n(random->begin(), Id::kBytes, id.bytes.begin());
  return id;
}

class ClientImpl : public Client {
 public:
  explicit ClientImpl(ClientOptions options);
  ~ClientImpl() override;

  absl::Status WaitConnected(absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool connected() const override ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<ServerInfo> server_info() const override ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<ScopeInfo> FindScope(const Scope& scope) const override;

  SequenceId OpenSequence(uint64_t length_tokens, uint32_t window_tokens,
                          Precision precision) override ABSL_LOCKS_EXCLUDED(mutex_);
  void AdvanceSequence(const SequenceId& id, uint64_t length_tokens) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseSequence(const SequenceId& id) override ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<LookupResult> Lookup(const LookupQuery& query) override;
  absl::StatusOr<FetchResult> Fetch(const LookupResult& hit, absl::Span<const PageKey> keys,
                                    const FetchOptions& options) override;
  absl::StatusOr<std::unique_ptr<PageFetch>> StartFetch(const LookupResult& hit,
                                                        absl::Span<const PageKey> keys,
                                                        const FetchOptions& options) override;
  void FetchThen(const LookupResult& hit, absl::Span<const PageKey> keys,
                 const FetchOptions& options, FetchCallback callback) override;
  absl::StatusOr<std::unique_ptr<MappedPages>> Map(const LookupResult& hit,
                                                   absl::Span<const PageKey> keys,
                                                   const FetchOptions& options) override;
  absl::StatusOr<std::unique_ptr<DevicePages>> MapDevice(const LookupResult& hit,
                                                         absl::Span<const PageKey> keys,
                                                         const FetchOptions& options) override;
  void Release(const LeaseId& lease) override;
  absl::Status Renew(const LeaseId& lease) override;
  absl::Status Prefetch(absl::Span<const ScopeChain> chains, absl::Duration deadline) override;
  void ReportTtft(const SequenceId& id, double seconds, uint32_t prompt_tokens,
                  uint32_t hit_tokens) override;
  absl::StatusOr<std::unique_ptr<Pusher>> OpenPusher(const SequenceId& sequence,
                                                     PushCallback callback) override;
  ClientStats stats() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Sequence {
    uint64_t length_tokens = 0;
    uint32_t window_tokens = 0;
    Precision precision = Precision::kRaw16;
  };
  // What calls need of an open session.
  struct Connection {
    std::string session_id;
    Identity identity;
    std::shared_ptr<ShmChannel> shm;        // null: not on this machine, or broken
    std::shared_ptr<ShmChannel> shm_loads;  // for pages that come up from SSD; null: not possible
    std::string shm_path;                   // of the daemon's socket; empty: none
  };
  // Pages of a lease that the caller wants.
  struct Pages {
    Connection connection;
    uint32_t begin = 0;
    uint32_t count = 0;
    absl::Span<const PageKey> keys;
    absl::Duration end;  // on the monotonic clock
  };

  static ShmChannel::Wanted WantedOf(const LookupResult& hit, const Pages& pages) {
    return {hit.lease,  hit.lease_until,           pages.begin,
            pages.keys, pages.connection.identity, pages.end - SystemClock().Monotonic()};
  }
  void Run();  // the background thread
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ServerInfo> Hello();
  struct Shm {
    std::shared_ptr<ShmChannel> channel;
    std::shared_ptr<ShmChannel> loads;
    std::string path;
  };
  Shm ConnectShm(const ServerInfo& server, const std::string& session_id);
  std::shared_ptr<ShmPushChannel> PushChannel(const Connection& connection)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Pages> WantedPages(const LookupResult& hit, absl::Span<const PageKey> keys,
                                    const FetchOptions& options) const;
  absl::StatusOr<std::unique_ptr<ShmView>> LocatePages(const LookupResult& hit,
                                                       absl::Span<const PageKey> keys,
                                                       const Pages& pages, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Null where that does not work: go on over gRPC.
  std::unique_ptr<PageFetch> StartShmFetch(const LookupResult& hit, absl::Span<const PageKey> keys,
                                           const Pages& pages, const FetchOptions& options)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<PageFetch> StartShmLoad(const LookupResult& hit, const Pages& pages,
                                          const FetchOptions& options);
  std::unique_ptr<PageFetch> StartGrpcFetch(const LeaseId& lease, const Pages& pages,
                                            const FetchOptions& options, uint32_t done);
  void Watch(const std::shared_ptr<Session>& session) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Connection> Current() const ABSL_LOCKS_EXCLUDED(mutex_);
  v1::SessionRequest OpenRequest(const SequenceId& id, const Sequence& sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendToSession(v1::SessionRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  void Count(int64_t ClientStats::*counter, int64_t amount = 1) ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> control_channel_;
  const std::unique_ptr<v1::Cache::Stub> stub_;
  const std::shared_ptr<grpc::Channel> data_channel_;
  const std::unique_ptr<grpc::GenericStub> data_stub_;

  // Guarded by mutex_. Locked before a Session's own mutex; no RPC is made while it is held.
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);  // null: not connected
  std::string session_id_ ABSL_GUARDED_BY(mutex_);
  Shm shm_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ShmPushChannel> shm_push_ ABSL_GUARDED_BY(mutex_);  // once somebody pushes
  // All that were opened and may still call back: kept here, so that none ends on its own thread.
  std::vector<std::shared_ptr<ShmPushChannel>> shm_pushes_ ABSL_GUARDED_BY(mutex_);
  // Where pages of a lease lie: it keeps them there, so that nobody asks twice.
  struct Located {
    uint32_t begin = 0;
    std::shared_ptr<const ShmPages> pages;
  };
  std::map<LeaseId, Located> located_ ABSL_GUARDED_BY(mutex_);
  std::optional<ServerInfo> server_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  std::map<SequenceId, Sequence> sequences_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<PushStream>> pushes_ ABSL_GUARDED_BY(mutex_);
  ClientStats stats_ ABSL_GUARDED_BY(mutex_);

  DeviceLink device_{options_.device};
  Executor executor_;
  std::thread thread_;  // last: it uses everything above
};

ClientImpl::ClientImpl(ClientOptions options)
    : options_(std::move(options)),
      control_channel_(MakeControlChannel(options_.target)),
      stub_(v1::Cache::NewStub(control_channel_)),
      data_channel_(MakeDataChannel(options_.target)),
      data_stub_(std::make_unique<grpc::GenericStub>(data_channel_)),
      last_error_(absl::UnavailableError("not connected yet")),
      thread_([this] { Run(); }) {}

ClientImpl::~ClientImpl() {
  std::shared_ptr<Session> session;
  std::vector<std::weak_ptr<PushStream>> pushes;
  std::vector<std::shared_ptr<ShmPushChannel>> shm_pushes;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    session = session_;
    shm_pushes = shm_pushes_;
  }
  thread_.join();
  executor_.Stop();
  for (const std::shared_ptr<ShmPushChannel>& channel : shm_pushes) channel->Stop();
  {
    absl::MutexLock lock(&mutex_);
    pushes = pushes_;
  }
  for (const std::weak_ptr<PushStream>& weak : pushes) {
    if (const std::shared_ptr<PushStream> push = weak.lock()) push->Cancel();
  }
  if (session != nullptr) session->Cancel();
  // Push callbacks name this object: wait for the last one, but not for ever.
  for (const std::weak_ptr<PushStream>& weak : pushes) {
    if (const std::shared_ptr<PushStream> push = weak.lock()) push->WaitDone(absl::Seconds(5));
  }
}

void ClientImpl::Run() {
  absl::Duration next_attempt = absl::ZeroDuration();
  while (true) {
    std::shared_ptr<Session> session;
    Shm shm;
    std::vector<std::weak_ptr<PushStream>> pushes;
    std::vector<std::shared_ptr<ShmPushChannel>> ended;  // without the lock: their last words count
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kTick);
      if (stopping_) return;
      const absl::Duration now = SystemClock().Monotonic();
      std::erase_if(located_,
                    [now](const auto& entry) { return entry.second.pages->lease_until() < now; });
      const auto first_ended = std::partition(
          shm_pushes_.begin(), shm_pushes_.end(),
          [](const auto& channel) { return !channel->broken() || channel.use_count() > 1; });
      ended.assign(std::make_move_iterator(first_ended),
                   std::make_move_iterator(shm_pushes_.end()));
      shm_pushes_.erase(first_ended, shm_pushes_.end());
      session = session_;
      shm = shm_;
      std::erase_if(pushes_, [](const auto& weak) { return weak.expired(); });
      pushes = pushes_;
    }
    const absl::Duration now = SystemClock().Monotonic();
    if (shm.channel != nullptr) {
      shm.channel->DropIdleMaps();
      shm.loads->DropIdleMaps();
    }
    device_.Watch();
    for (const std::weak_ptr<PushStream>& weak : pushes) {
      if (const std::shared_ptr<PushStream> push = weak.lock()) push->CheckProgress(now);
    }
    if (session != nullptr) {
      Watch(session);
    } else if (now >= next_attempt) {
      absl::Status status = Connect();
      next_attempt = SystemClock().Monotonic() + options_.reconnect_interval;
      if (!status.ok()) {
        absl::MutexLock lock(&mutex_);
        last_error_ = std::move(status);
      }
    }
  }
}

void ClientImpl::Watch(const std::shared_ptr<Session>& session) {
  if (const std::optional<absl::Status> ended = session->ended(); ended.has_value()) {
    absl::MutexLock lock(&mutex_);
    session_.reset();
    session_id_.clear();
    shm_ = {};
    shm_push_.reset();
    located_.clear();
    last_error_ = absl::UnavailableError(absl::StrCat("session ended: ", ended->message()));
    return;
  }
  const absl::Duration silence = SystemClock().Monotonic() - session->last_heard();
  const absl::Duration interval = session->heartbeat_interval();
  if (silence > 4 * interval) {
    session->Cancel();  // The daemon is gone or stopped.
  } else if (silence > interval) {
    v1::SessionRequest request;
    request.mutable_heartbeat();
    session->Send(std::move(request));
  }
}

absl::StatusOr<ServerInfo> ClientImpl::Hello() {
  v1::HelloRequest request;
  request.set_protocol_version_min(kProtocolVersion);
  request.set_protocol_version_max(kProtocolVersion);
  request.set_client_name(options_.client_name);
  request.set_page_tokens(options_.page_tokens);
  request.set_known_answer(Bytes(KnownAnswer()));
  request.set_backend_tag(options_.backend_tag);
  if (options_.model.has_value()) *request.mutable_model() = ToWire(*options_.model);
  grpc::ClientContext context;
  PrepareContext(context, options_.token, options_.connect_timeout);
  v1::HelloResponse response;
  PAGODA_RETURN_IF_ERROR(FromGrpc(stub_->Hello(&context, request, &response)));
  return ServerInfoFromWire(response, options_.model.has_value());
}

absl::Status ClientImpl::Connect() {
  PAGODA_ASSIGN_OR_RETURN(ServerInfo server, Hello());
  if (options_.model.has_value() && server.page_tokens != options_.page_tokens) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the daemon uses pages of %d tokens, this client %d", server.page_tokens,
                        options_.page_tokens));
  }
  std::shared_ptr<Session> session = Session::Start(*stub_, options_.token);
  const absl::StatusOr<std::string> id = session->WaitOpen(options_.connect_timeout);
  if (!id.ok()) {
    session->Cancel();
    return id.status();
  }
  // Now, while the daemon takes connections: what shared memory cannot do goes this way.
  (void)data_channel_->GetState(/*try_to_connect=*/true);
  Shm shm = ConnectShm(server, *id);
  absl::MutexLock lock(&mutex_);
  if (server_.has_value()) ++stats_.reconnects;
  session_ = session;
  session_id_ = *id;
  shm_ = std::move(shm);
  server_ = std::move(server);
  last_error_ = absl::OkStatus();
  for (const auto& [sequence_id, sequence] : sequences_) {
    session->Send(OpenRequest(sequence_id, sequence));
  }
  return absl::OkStatus();
}

// Nothing where there is none; everything works over gRPC then.
ClientImpl::Shm ClientImpl::ConnectShm(const ServerInfo& server, const std::string& session_id) {
  constexpr absl::string_view kUnix = "unix:";
  if (options_.shm_socket == "none" || server.shm_socket.empty()) return {};
  std::vector<std::string> paths = {server.shm_socket};
  if (absl::StartsWith(options_.target, kUnix)) {
    paths.push_back(absl::StrCat(options_.target.substr(kUnix.size()), ".shm"));
  }
  if (!options_.shm_socket.empty()) paths = {options_.shm_socket};
  for (const std::string& path : paths) {
    absl::StatusOr<std::shared_ptr<ShmChannel>> channel = ShmChannel::Connect(path, session_id);
    absl::StatusOr<std::shared_ptr<ShmChannel>> loads = ShmChannel::Connect(path, session_id);
    if (channel.ok() && loads.ok()) return {*std::move(channel), *std::move(loads), path};
  }
  return {};
}

// Null where pages go over gRPC.
std::shared_ptr<ShmPushChannel> ClientImpl::PushChannel(const Connection& connection) {
  if (connection.shm == nullptr || options_.push_staging_bytes == 0) return nullptr;
  absl::MutexLock lock(&mutex_);
  if (session_id_ != connection.session_id) return nullptr;
  // One that broke is not tried again before the next session.
  if (shm_push_ == nullptr) {
    absl::StatusOr<std::shared_ptr<ShmPushChannel>> channel =
        ShmPushChannel::Connect(connection.shm_path, connection.session_id,
                                {.staging_bytes = options_.push_staging_bytes,
                                 .answer_timeout = options_.transfer_timeout});
    if (!channel.ok()) return nullptr;
    shm_push_ = *std::move(channel);
    shm_pushes_.push_back(shm_push_);
  }
  return shm_push_->broken() ? nullptr : shm_push_;
}

absl::Status ClientImpl::WaitConnected(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto open = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return session_ != nullptr && !session_->ended().has_value();
  };
  if (mutex_.AwaitWithTimeout(absl::Condition(&open), timeout)) return absl::OkStatus();
  const absl::StatusCode code =
      last_error_.ok() ? absl::StatusCode::kDeadlineExceeded : last_error_.code();
  return absl::Status(code, absl::StrCat("no session with pagodad at ", options_.target, ": ",
                                         last_error_.message()));
}

bool ClientImpl::connected() const {
  absl::MutexLock lock(&mutex_);
  return session_ != nullptr && !session_->ended().has_value();
}

std::optional<ServerInfo> ClientImpl::server_info() const {
  absl::MutexLock lock(&mutex_);
  return server_;
}

std::optional<ScopeInfo> ClientImpl::FindScope(const Scope& scope) const {
  const std::optional<ServerInfo> server = server_info();
  if (!server.has_value()) return std::nullopt;
  for (const ScopeInfo& info : server->scopes) {
    if (info.scope.kind != scope.kind) continue;
    if (scope.kind == ScopeKind::kGroup && info.scope.name != scope.name) continue;
    return info;
  }
  return std::nullopt;
}

absl::StatusOr<ClientImpl::Connection> ClientImpl::Current() const {
  absl::MutexLock lock(&mutex_);
  if (session_ == nullptr || session_->ended().has_value()) {
    return absl::UnavailableError(absl::StrCat("no session: ", last_error_.message()));
  }
  Connection connection{session_id_, server_->identity, nullptr, nullptr, shm_.path};
  if (shm_.channel != nullptr && !shm_.channel->broken()) {
    connection.shm = shm_.channel;
    if (!shm_.loads->broken()) connection.shm_loads = shm_.loads;
  }
  return connection;
}

void ClientImpl::SendToSession(v1::SessionRequest request) {
  std::shared_ptr<Session> session;
  {
    absl::MutexLock lock(&mutex_);
    session = session_;
  }
  if (session != nullptr) session->Send(std::move(request));
}

v1::SessionRequest ClientImpl::OpenRequest(const SequenceId& id, const Sequence& sequence) const {
  v1::SessionRequest request;
  v1::OpenSequence& open = *request.mutable_open_sequence();
  open.set_sequence_id(Bytes(id));
  open.set_length_tokens(sequence.length_tokens);
  open.set_window_tokens(sequence.window_tokens);
  open.set_precision(ToWire(sequence.precision));
  if (server_.has_value()) open.set_identity(Bytes(server_->identity));
  return request;
}

SequenceId ClientImpl::OpenSequence(uint64_t length_tokens, uint32_t window_tokens,
                                    Precision precision) {
  const auto id = RandomId<SequenceId>();
  const Sequence sequence{length_tokens, window_tokens, precision};
  v1::SessionRequest request;
  {
    absl::MutexLock lock(&mutex_);
    sequences_[id] = sequence;
    request = OpenRequest(id, sequence);
  }
  SendToSession(std::move(request));
  return id;
}

void ClientImpl::AdvanceSequence(const SequenceId& id, uint64_t length_tokens) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    found->second.length_tokens = length_tokens;
  }
  v1::SessionRequest request;
  request.mutable_advance_sequence()->set_sequence_id(Bytes(id));
  request.mutable_advance_sequence()->set_length_tokens(length_tokens);
  SendToSession(std::move(request));
}

void ClientImpl::CloseSequence(const SequenceId& id) {
  {
    absl::MutexLock lock(&mutex_);
    if (sequences_.erase(id) == 0) return;
  }
  v1::SessionRequest request;
  request.mutable_close_sequence()->set_sequence_id(Bytes(id));
  SendToSession(std::move(request));
}

absl::StatusOr<LookupResult> ClientImpl::Lookup(const LookupQuery& query) {
  Count(&ClientStats::lookups);
  const auto fail = [this](absl::Status status) {
    Count(&ClientStats::lookup_failures);
    return status;
  };
  const absl::StatusOr<Connection> connection = Current();
  if (!connection.ok()) return fail(connection.status());
  v1::LookupRequest request;
  request.set_session_id(connection->session_id);
  request.set_identity(Bytes(connection->identity));
  request.set_request_id(
      Bytes(query.request_id.is_zero() ? RandomId<RequestId>() : query.request_id));
  if (!query.sequence_id.is_zero()) request.set_sequence_id(Bytes(query.sequence_id));
  FillPart(query.part, *request.mutable_part());
  FillChains(query.chains, *request.mutable_chains());
  request.set_precision_min(ToWire(query.precision_min));
  request.set_fidelity_min(ToWire(query.fidelity_min));
  request.set_peek(query.peek);

  grpc::ClientContext context;
  PrepareContext(context, options_.token, options_.control_timeout);
  v1::LookupResponse response;
  const absl::Duration asked_at = SystemClock().Monotonic();
  if (absl::Status s = FromGrpc(stub_->Lookup(&context, request, &response)); !s.ok()) {
    return fail(std::move(s));
  }
  absl::StatusOr<LookupResult> result = LookupResultFromWire(response, query, asked_at);
  if (!result.ok()) return fail(result.status());
  return result;
}

absl::StatusOr<ClientImpl::Pages> ClientImpl::WantedPages(const LookupResult& hit,
                                                          absl::Span<const PageKey> keys,
                                                          const FetchOptions& options) const {
  const uint32_t found = static_cast<uint32_t>(hit.pages.size());
  const uint32_t count =
      options.page_count != 0 ? options.page_count : found - std::min(found, options.page_begin);
  if (count == 0 || options.page_begin > found || count > found - options.page_begin ||
      keys.size() < found) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: pages %d to %d of %d found, %d keys", options.page_begin,
                        options.page_begin + count, found, keys.size()));
  }
  Pages pages;
  PAGODA_ASSIGN_OR_RETURN(pages.connection, Current());
  const absl::Duration left = hit.lease_until - SystemClock().Monotonic();
  if (left <= absl::ZeroDuration()) return absl::AbortedError("fetch: the lease is over");
  pages.begin = options.page_begin;
  pages.count = count;
  pages.keys = keys.subspan(options.page_begin, count);
  pages.end = SystemClock().Monotonic() + std::min(left, options_.transfer_timeout);
  return pages;
}

absl::StatusOr<std::unique_ptr<ShmView>> ClientImpl::LocatePages(const LookupResult& hit,
                                                                 absl::Span<const PageKey> keys,
                                                                 const Pages& pages,
                                                                 absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    const auto known = located_.find(hit.lease);
    if (known != located_.end() && known->second.begin <= pages.begin &&
        pages.begin - known->second.begin + pages.count <= known->second.pages->size()) {
      return std::make_unique<ShmView>(known->second.pages, pages.begin - known->second.begin,
                                       pages.count);
    }
  }
  // Others of the lease that are there as well: who fetches some of them fetches more.
  uint32_t count = pages.count;
  const auto found = static_cast<uint32_t>(hit.pages.size());
  while (count < kLocatedAhead && pages.begin + count < found &&
         !hit.pages[pages.begin + count].loading) {
    ++count;
  }
  PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<const ShmPages> located,
                          pages.connection.shm->Locate({.lease = hit.lease,
                                                        .lease_until = hit.lease_until,
                                                        .page_begin = pages.begin,
                                                        .keys = keys.subspan(pages.begin, count),
                                                        .identity = pages.connection.identity,
                                                        .timeout = timeout}));
  absl::MutexLock lock(&mutex_);
  if (located->size() == count && session_id_ == pages.connection.session_id) {
    if (located_.size() < kLocatedMax) located_[hit.lease] = {pages.begin, located};
  }
  return std::make_unique<ShmView>(std::move(located), 0, pages.count);
}

std::unique_ptr<PageFetch> ClientImpl::StartGrpcFetch(const LeaseId& lease, const Pages& pages,
                                                      const FetchOptions& options, uint32_t done) {
  v1::FetchRequest request;
  request.set_session_id(pages.connection.session_id);
  request.set_lease_id(Bytes(lease));
  request.set_page_begin(pages.begin + done);
  request.set_page_count(pages.count - done);
  request.set_precision_max(ToWire(options.precision_max));
  PageTarget target = options.target;
  if (target != nullptr && done > 0) {
    target = [target = options.target, done](uint32_t page_index, const PageHeader& header) {
      return target(page_index + done, header);
    };
  }
  return FetchOverGrpc(*data_stub_, request, options_.token,
                       std::max(pages.end - SystemClock().Monotonic(), absl::Milliseconds(1)),
                       pages.connection.identity, pages.keys.subspan(done), std::move(target));
}

std::unique_ptr<PageFetch> ClientImpl::StartShmFetch(const LookupResult& hit,
                                                     absl::Span<const PageKey> keys,
                                                     const Pages& pages,
                                                     const FetchOptions& options) {
  absl::StatusOr<std::unique_ptr<ShmView>> located =
      LocatePages(hit, keys, pages, (pages.end - SystemClock().Monotonic()) / 2);
  if (!located.ok() || (*located)->size() == 0) return nullptr;
  return FetchFromShm(*std::move(located), options);
}

std::unique_ptr<PageFetch> ClientImpl::StartShmLoad(const LookupResult& hit, const Pages& pages,
                                                    const FetchOptions& options) {
  if (pages.connection.shm_loads == nullptr) return nullptr;
  ShmChannel::Wanted wanted = WantedOf(hit, pages);
  wanted.timeout /= 2;
  absl::StatusOr<std::unique_ptr<ShmLoad>> load = pages.connection.shm_loads->Load(wanted);
  if (!load.ok() || (*load)->pages()->size() == 0) return nullptr;
  auto view = std::make_unique<ShmView>((*load)->pages(), 0, pages.count);
  return FetchFromShm(std::move(view), options, *std::move(load));
}

absl::StatusOr<std::unique_ptr<PageFetch>> ClientImpl::StartFetch(const LookupResult& hit,
                                                                  absl::Span<const PageKey> keys,
                                                                  const FetchOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const Pages pages, WantedPages(hit, keys, options));
  std::unique_ptr<PageFetch> source;
  const ShmServes serves = ServesOf(hit, pages.begin, pages.count, options.precision_max);
  if (pages.connection.shm != nullptr && serves.as_stored) {
    source =
        serves.ready ? StartShmFetch(hit, keys, pages, options) : StartShmLoad(hit, pages, options);
    if (source == nullptr) Count(&ClientStats::shm_fallbacks);
  }
  const bool over_grpc = source == nullptr;
  if (over_grpc) source = StartGrpcFetch(hit.lease, pages, options, 0);
  CombinedFetch::Rest rest;
  if (!over_grpc) {
    // Keys outlive this call in it.
    rest = [this, lease = hit.lease, pages, options,
            kept = std::vector<PageKey>(pages.keys.begin(), pages.keys.end())](uint32_t done) {
      Count(&ClientStats::shm_fallbacks);
      Pages left = pages;
      left.keys = kept;
      return StartGrpcFetch(lease, left, options, done);
    };
  }
  return std::make_unique<CombinedFetch>(
      std::move(source), pages.count, std::move(rest),
      [this, over_grpc](const FetchResult& result, uint32_t by_source) {
        if (!over_grpc) Count(&ClientStats::shm_pages, by_source);
        Count(&ClientStats::fetched_pages, static_cast<int64_t>(result.pages.size()));
        Count(&ClientStats::fetched_bytes, result.bytes);
        if (!result.status.ok()) Count(&ClientStats::fetch_failures);
      });
}

absl::StatusOr<FetchResult> ClientImpl::Fetch(const LookupResult& hit,
                                              absl::Span<const PageKey> keys,
                                              const FetchOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<PageFetch> fetch, StartFetch(hit, keys, options));
  return fetch->Wait();
}

void ClientImpl::FetchThen(const LookupResult& hit, absl::Span<const PageKey> keys,
                           const FetchOptions& options, FetchCallback callback) {
  auto shared = std::make_shared<FetchCallback>(std::move(callback));
  const bool taken = executor_.Run(
      [this, hit, options, shared, kept = std::vector<PageKey>(keys.begin(), keys.end())] {
        (*shared)(Fetch(hit, kept, options));
      });
  if (!taken) (*shared)(absl::ResourceExhaustedError("fetch: too many of them wait"));
}

absl::StatusOr<std::unique_ptr<MappedPages>> ClientImpl::Map(const LookupResult& hit,
                                                             absl::Span<const PageKey> keys,
                                                             const FetchOptions& options) {
  if (options.precision_max != Precision::kNone) {
    return absl::InvalidArgumentError("map: pages are as they are stored; precision_max is none");
  }
  PAGODA_ASSIGN_OR_RETURN(const Pages pages, WantedPages(hit, keys, options));
  if (pages.connection.shm == nullptr) {
    return absl::UnavailableError("map: no shared memory with the daemon; fetch instead");
  }
  if (!ServesOf(hit, pages.begin, pages.count, Precision::kNone).ready) {
    return absl::UnavailableError("map: pages are still on their way to memory; fetch instead");
  }
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<ShmView> mapped,
                          LocatePages(hit, keys, pages, pages.end - SystemClock().Monotonic()));
  Count(&ClientStats::mapped_pages, static_cast<int64_t>(mapped->size()));
  return mapped;
}

absl::StatusOr<std::unique_ptr<DevicePages>> ClientImpl::MapDevice(const LookupResult& hit,
                                                                   absl::Span<const PageKey> keys,
                                                                   const FetchOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const Pages pages, WantedPages(hit, keys, options));
  absl::StatusOr<std::unique_ptr<DevicePages>> mapped =
      device_.Map(pages.connection.shm_path, pages.connection.session_id, WantedOf(hit, pages));
  const auto count = static_cast<int64_t>(mapped.ok() ? (*mapped)->there_count() : 0);
  Count(&ClientStats::device_pages, count);
  Count(&ClientStats::device_fallbacks, pages.count - count);
  return mapped;
}

void ClientImpl::Release(const LeaseId& lease) {
  {
    absl::MutexLock lock(&mutex_);
    located_.erase(lease);
  }
  const absl::StatusOr<Connection> connection = Current();
  if (!connection.ok() || lease.is_zero()) return;
  v1::ReleaseRequest request;
  request.set_session_id(connection->session_id);
  request.add_lease_ids(Bytes(lease));
  grpc::ClientContext context;
  PrepareContext(context, options_.token, options_.control_timeout);
  v1::ReleaseResponse response;
  // If this fails the lease ends by itself.
  (void)stub_->Release(&context, request, &response);
}

absl::Status ClientImpl::Renew(const LeaseId& lease) {
  PAGODA_ASSIGN_OR_RETURN(const Connection connection, Current());
  v1::RenewRequest request;
  request.set_session_id(connection.session_id);
  request.set_lease_id(Bytes(lease));
  grpc::ClientContext context;
  PrepareContext(context, options_.token, options_.control_timeout);
  v1::RenewResponse response;
  {
    absl::MutexLock lock(&mutex_);
    located_.erase(lease);  // it knows the old end
  }
  return FromGrpc(stub_->Renew(&context, request, &response));
}

absl::Status ClientImpl::Prefetch(absl::Span<const ScopeChain> chains, absl::Duration deadline) {
  PAGODA_ASSIGN_OR_RETURN(const Connection connection, Current());
  v1::PrefetchRequest request;
  request.set_session_id(connection.session_id);
  request.set_identity(Bytes(connection.identity));
  FillChains(chains, *request.mutable_chains());
  request.set_deadline_seconds(absl::ToDoubleSeconds(deadline));
  grpc::ClientContext context;
  PrepareContext(context, options_.token, options_.control_timeout);
  v1::PrefetchResponse response;
  return FromGrpc(stub_->Prefetch(&context, request, &response));
}

void ClientImpl::ReportTtft(const SequenceId& id, double seconds, uint32_t prompt_tokens,
                            uint32_t hit_tokens) {
  const absl::StatusOr<Connection> connection = Current();
  if (!connection.ok()) return;
  v1::ReportRequest request;
  request.set_session_id(connection->session_id);
  if (!id.is_zero()) request.set_sequence_id(Bytes(id));
  request.set_identity(Bytes(connection->identity));
  request.set_ttft_seconds(seconds);
  request.set_prompt_tokens(prompt_tokens);
  request.set_hit_tokens(hit_tokens);
  grpc::ClientContext context;
  PrepareContext(context, options_.token, options_.control_timeout);
  v1::ReportResponse response;
  (void)stub_->Report(&context, request, &response);  // Best effort by contract.
}

absl::StatusOr<std::unique_ptr<Pusher>> ClientImpl::OpenPusher(const SequenceId& sequence,
                                                               PushCallback callback) {
  PAGODA_ASSIGN_OR_RETURN(const Connection connection, Current());
  PushConfig config;
  config.token = options_.token;
  config.session_id = connection.session_id;
  config.sequence = sequence;
  config.identity = connection.identity;
  config.page_tokens = options_.page_tokens;
  config.backend_tag = options_.backend_tag;
  config.queue_bytes_max = options_.push_queue_bytes_max;
  config.answer_timeout = options_.transfer_timeout;
  const auto counted = [this, callback = std::move(callback)](
                           const PageKey& key, const absl::StatusOr<PushOutcome>& outcome) {
    Count(outcome.ok() ? &ClientStats::pushed_pages : &ClientStats::push_failures);
    if (callback != nullptr) callback(key, outcome);
  };
  const auto open_stream = [this](PushConfig stream_config, PushCallback stream_callback) {
    std::shared_ptr<PushStream> stream =
        PushStream::Start(*data_stub_, std::move(stream_config), std::move(stream_callback));
    absl::MutexLock lock(&mutex_);
    pushes_.push_back(stream);
    return stream;
  };
  PusherEvents events;
  events.on_shm_page = [this] { Count(&ClientStats::shm_pushed_pages); };
  events.on_fallback = [this] { Count(&ClientStats::shm_push_fallbacks); };
  return MakePusher(std::move(config), PushChannel(connection), open_stream, counted,
                    std::move(events));
}

ClientStats ClientImpl::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

void ClientImpl::Count(int64_t ClientStats::*counter, int64_t amount) {
  absl::MutexLock lock(&mutex_);
  stats_.*counter += amount;
}

}  // namespace

std::future<absl::StatusOr<FetchResult>> Client::FetchAsync(const LookupResult& hit,
                                                            absl::Span<const PageKey> keys,
                                                            const FetchOptions& options) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<FetchResult>>>();
  std::future<absl::StatusOr<FetchResult>> future = promise->get_future();
  FetchThen(hit, keys, options, [promise](absl::StatusOr<FetchResult> result) {
    promise->set_value(std::move(result));
  });
  return future;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  return std::make_unique<ClientImpl>(std::move(options));
}

}  // namespace pagoda::client
