#include "client/client.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/channel.h"
#include "client/fetch_call.h"
#include "client/messages.h"
#include "client/push_stream.h"
#include "client/session.h"
#include "client/shm_channel.h"
#include "proto/wire.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

// How often the background thread looks at heartbeats, stuck pushes and lost sessions.
constexpr absl::Duration kTick = absl::Milliseconds(100);

template <typename Id>
Id RandomId() {
  const absl::StatusOr<Sha256Digest> random = RandomBytes32();
  PAGODA_CHECK(random.ok());
  Id id;
  std::copy_n(random->begin(), Id::kBytes, id.bytes.begin());
  return id;
}

// Whether those pages are in memory as they are wanted: shared memory has no other form of them,
// and gRPC does not stand in the way of others while a disk is read.
bool ReadyAsStored(const LookupResult& hit, uint32_t begin, uint32_t count, Precision most) {
  const auto first = hit.pages.begin() + begin;
  return std::all_of(first, first + count, [most](const FoundPage& page) {
    return !page.loading && (most == Precision::kNone || page.precision <= most);
  });
}

class PusherHandle : public Pusher {
 public:
  explicit PusherHandle(std::shared_ptr<PushStream> stream) : stream_(std::move(stream)) {}
  ~PusherHandle() override { stream_->Cancel(); }
  absl::Status Push(PushItem item) override { return stream_->Push(std::move(item)); }
  absl::Status Flush(absl::Duration timeout) override { return stream_->Flush(timeout); }

 private:
  const std::shared_ptr<PushStream> stream_;
};

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
    std::shared_ptr<ShmChannel> shm;  // null: not on this machine, or broken
  };

  void Run();  // the background thread
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ServerInfo> Hello();
  std::shared_ptr<ShmChannel> ConnectShm(const ServerInfo& server, const std::string& session_id);
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
  const std::unique_ptr<grpc::GenericStub> data_stub_;

  // Guarded by mutex_. Locked before a Session's own mutex; no RPC is made while it is held.
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);  // null: not connected
  std::string session_id_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ShmChannel> shm_ ABSL_GUARDED_BY(mutex_);
  std::optional<ServerInfo> server_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  std::map<SequenceId, Sequence> sequences_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<PushStream>> pushes_ ABSL_GUARDED_BY(mutex_);
  ClientStats stats_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses everything above
};

ClientImpl::ClientImpl(ClientOptions options)
    : options_(std::move(options)),
      control_channel_(MakeControlChannel(options_.target)),
      stub_(v1::Cache::NewStub(control_channel_)),
      data_stub_(std::make_unique<grpc::GenericStub>(MakeDataChannel(options_.target))),
      last_error_(absl::UnavailableError("not connected yet")),
      thread_([this] { Run(); }) {}

ClientImpl::~ClientImpl() {
  std::shared_ptr<Session> session;
  std::vector<std::weak_ptr<PushStream>> pushes;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    session = session_;
    pushes = pushes_;
  }
  thread_.join();
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
    std::shared_ptr<ShmChannel> shm;
    std::vector<std::weak_ptr<PushStream>> pushes;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kTick);
      if (stopping_) return;
      session = session_;
      shm = shm_;
      std::erase_if(pushes_, [](const auto& weak) { return weak.expired(); });
      pushes = pushes_;
    }
    const absl::Duration now = SystemClock().Monotonic();
    if (shm != nullptr) shm->DropIdleMaps();
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
    shm_.reset();
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
  std::shared_ptr<ShmChannel> shm = ConnectShm(server, *id);
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

// Null where there is none; everything works over gRPC then.
std::shared_ptr<ShmChannel> ClientImpl::ConnectShm(const ServerInfo& server,
                                                   const std::string& session_id) {
  constexpr absl::string_view kUnix = "unix:";
  if (options_.shm_socket == "none" || server.shm_socket.empty()) return nullptr;
  std::vector<std::string> paths = {server.shm_socket};
  if (absl::StartsWith(options_.target, kUnix)) {
    paths.push_back(absl::StrCat(options_.target.substr(kUnix.size()), ".shm"));
  }
  if (!options_.shm_socket.empty()) paths = {options_.shm_socket};
  for (const std::string& path : paths) {
    absl::StatusOr<std::shared_ptr<ShmChannel>> channel = ShmChannel::Connect(path, session_id);
    if (channel.ok()) return *std::move(channel);
  }
  return nullptr;
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
  const bool shm = shm_ != nullptr && !shm_->broken();
  return Connection{session_id_, server_->identity, shm ? shm_ : nullptr};
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

absl::StatusOr<FetchResult> ClientImpl::Fetch(const LookupResult& hit,
                                              absl::Span<const PageKey> keys,
                                              const FetchOptions& options) {
  const uint32_t found = static_cast<uint32_t>(hit.pages.size());
  const uint32_t count =
      options.page_count != 0 ? options.page_count : found - std::min(found, options.page_begin);
  if (count == 0 || options.page_begin > found || count > found - options.page_begin ||
      keys.size() < found) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: pages %d to %d of %d found, %d keys", options.page_begin,
                        options.page_begin + count, found, keys.size()));
  }
  PAGODA_ASSIGN_OR_RETURN(const Connection connection, Current());
  const absl::Duration left = hit.lease_until - SystemClock().Monotonic();
  if (left <= absl::ZeroDuration()) return absl::AbortedError("fetch: the lease is over");
  const absl::Duration end = SystemClock().Monotonic() + std::min(left, options_.transfer_timeout);
  FetchResult result;
  if (connection.shm != nullptr &&
      ReadyAsStored(hit, options.page_begin, count, options.precision_max)) {
    result = connection.shm->Fetch(hit.lease, options.page_begin,
                                   keys.subspan(options.page_begin, count), connection.identity,
                                   options.precision_max, (end - SystemClock().Monotonic()) / 2);
    Count(&ClientStats::shm_pages, static_cast<int64_t>(result.pages.size()));
    if (result.pages.size() < count) Count(&ClientStats::shm_fallbacks);
  }
  const auto done = static_cast<uint32_t>(result.pages.size());
  if (done < count) {
    v1::FetchRequest request;
    request.set_session_id(connection.session_id);
    request.set_lease_id(Bytes(hit.lease));
    request.set_page_begin(options.page_begin + done);
    request.set_page_count(count - done);
    request.set_precision_max(ToWire(options.precision_max));
    FetchResult rest =
        RunFetch(*data_stub_, request, options_.token,
                 std::max(end - SystemClock().Monotonic(), absl::Milliseconds(1)),
                 connection.identity, keys.subspan(options.page_begin + done, count - done));
    result.status = std::move(rest.status);
    result.bytes += rest.bytes;
    for (FetchedPage& page : rest.pages) result.pages.push_back(std::move(page));
  }
  Count(&ClientStats::fetched_pages, static_cast<int64_t>(result.pages.size()));
  Count(&ClientStats::fetched_bytes, result.bytes);
  if (!result.status.ok()) Count(&ClientStats::fetch_failures);
  return result;
}

void ClientImpl::Release(const LeaseId& lease) {
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
  PushStream::Config config;
  config.token = options_.token;
  config.session_id = connection.session_id;
  config.sequence = sequence;
  config.identity = connection.identity;
  config.page_tokens = options_.page_tokens;
  config.backend_tag = options_.backend_tag;
  config.queue_bytes_max = options_.push_queue_bytes_max;
  config.answer_timeout = options_.transfer_timeout;
  auto counted = [this, callback = std::move(callback)](
                     const PageKey& key, const absl::StatusOr<PushOutcome>& outcome) {
    Count(outcome.ok() ? &ClientStats::pushed_pages : &ClientStats::push_failures);
    if (callback != nullptr) callback(key, outcome);
  };
  std::shared_ptr<PushStream> stream =
      PushStream::Start(*data_stub_, std::move(config), std::move(counted));
  {
    absl::MutexLock lock(&mutex_);
    pushes_.push_back(stream);
  }
  return std::make_unique<PusherHandle>(std::move(stream));
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

absl::string_view PageTierName(PageTier tier) { return TierName(static_cast<v1::Tier>(tier)); }

absl::Status ClientOptions::Validate() const {
  if (target.empty()) {
    return absl::InvalidArgumentError("client: target is empty; use host:port or unix:/path");
  }
  if (page_tokens == 0) return absl::InvalidArgumentError("client: page_tokens is 0");
  if (connect_timeout <= absl::ZeroDuration() || control_timeout <= absl::ZeroDuration() ||
      transfer_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("client: every timeout must be positive");
  }
  if (push_queue_bytes_max <= 0) {
    return absl::InvalidArgumentError("client: push_queue_bytes_max must be positive");
  }
  return model.has_value() ? ValidateModelSpec(*model) : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  return std::make_unique<ClientImpl>(std::move(options));
}

}  // namespace pagoda::client
