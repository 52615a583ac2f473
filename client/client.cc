#include "client/client.h"

#include "client/channel.h"
#include "client/client_impl.h"
#include "client/messages.h"
#include "client/pusher.h"
#include "proto/wire.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {

ClientImpl::ClientImpl(ClientOptions options)
    : options_(std::move(options)),
      control_channel_(MakeControlChannel(options_.target, options_.tls)),
      stub_(v1::Cache::NewStub(control_channel_)),
      data_channel_(MakeDataChannel(options_.target, options_.tls)),
      data_stub_(std::make_unique<grpc::GenericStub>(data_channel_)),
      fetch_streams_(std::make_shared<FetchStreams>(*data_stub_, options_.token)),
      last_error_(absl::UnavailableError("not connected yet")),
      thread_([this] { Run(); }) {}

ClientImpl::~ClientImpl() {
  std::shared_ptr<Session> session;
  std::vector<std::weak_ptr<PushStream>> pushes;
  std::vector<std::shared_ptr<ShmPushChannel>> shm_pushes;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    session = session_;
    shm_pushes = shm_pushes_;
  }
  executor_.Stop();
  for (const std::shared_ptr<ShmPushChannel>& channel : shm_pushes) channel->Stop();
  {
    absl::MutexLock lock(&mutex_);
    pushes = pushes_;
  }
  for (const std::weak_ptr<PushStream>& weak : pushes) {
    if (const std::shared_ptr<PushStream> push = weak.lock()) push->Cancel();
  }
  fetch_streams_->Stop();
  if (session != nullptr) session->Cancel();
  // Push callbacks name this object: wait for the last one, but not for ever.
  for (const std::weak_ptr<PushStream>& weak : pushes) {
    if (const std::shared_ptr<PushStream> push = weak.lock()) push->WaitDone(absl::Seconds(5));
  }
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
  for (const PagePart& part : query.parts) FillPart(part, *request.add_parts());
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

absl::Status ClientImpl::Prefetch(absl::Span<const ScopeChain> chains, absl::Duration deadline,
                                  absl::Span<const PagePart> parts) {
  PAGODA_ASSIGN_OR_RETURN(const Connection connection, Current());
  v1::PrefetchRequest request;
  request.set_session_id(connection.session_id);
  request.set_identity(Bytes(connection.identity));
  FillChains(chains, *request.mutable_chains());
  for (const PagePart& part : parts) FillPart(part, *request.add_parts());
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
  const v1::ReportRequest request = TtftMessage(connection->session_id, connection->identity, id,
                                                seconds, prompt_tokens, hit_tokens);
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
  config.on_grpc_page = [this](int64_t bytes, absl::Duration took) {
    grpc_path_.AddPush(bytes, took);
  };
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
  events.on_shm_page = [this](int64_t bytes, absl::Duration took) {
    Count(&ClientStats::shm_pushed_pages);
    shm_path_.AddPush(bytes, took);
  };
  events.on_fallback = [this] {
    Count(&ClientStats::shm_push_fallbacks);
    shm_path_.AddFallback();
  };
  return MakePusher(std::move(config), PushChannel(connection), open_stream, counted,
                    std::move(events));
}

ClientStats ClientImpl::stats() const {
  ClientStats stats;
  {
    absl::MutexLock lock(&mutex_);
    stats = stats_;
  }
  stats.shm = shm_path_.Stats();
  stats.nccl = nccl_path_.Stats();
  stats.grpc = grpc_path_.Stats();
  return stats;
}

void ClientImpl::Count(int64_t ClientStats::*counter, int64_t amount) {
  absl::MutexLock lock(&mutex_);
  stats_.*counter += amount;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  return std::make_unique<ClientImpl>(std::move(options));
}

}  // namespace pagoda::client
