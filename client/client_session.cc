#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/channel.h"
#include "client/client_impl.h"
#include "client/connect_advice.h"
#include "client/messages.h"
#include "proto/wire.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

// How often the background thread looks at heartbeats, stuck pushes and lost sessions.
constexpr absl::Duration kTick = absl::Milliseconds(100);

}  // namespace

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
    peer_.Watch();
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
  const v1::HelloRequest request = HelloMessage(options_);
  grpc::ClientContext context;
  PrepareContext(context, options_.token, options_.connect_timeout);
  v1::HelloResponse response;
  PAGODA_RETURN_IF_ERROR(WithConnectAdvice(FromGrpc(stub_->Hello(&context, request, &response)),
                                           options_.target, options_.tls,
                                           options_.connect_timeout));
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

}  // namespace pagoda::client
