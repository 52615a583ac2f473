#include "cache-server/testing/wire_client.h"

#include <grpcpp/impl/codegen/client_unary_call.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda {

WireClient::WireClient(const std::string& address, std::string token) : token_(std::move(token)) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  cache_ = v1::Cache::NewStub(channel_);
  admin_ = v1::Admin::NewStub(channel_);
}

WireClient::~WireClient() { BreakSession(); }

std::unique_ptr<grpc::ClientContext> WireClient::Context(double seconds) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
  if (!token_.empty()) context->AddMetadata(kTokenMetadataKey, absl::StrCat("Bearer ", token_));
  return context;
}

absl::StatusOr<v1::HelloResponse> WireClient::Hello(const ModelSpec& spec) {
  v1::HelloRequest request;
  request.set_protocol_version_min(1);
  request.set_protocol_version_max(1);
  request.set_client_name("test");
  *request.mutable_model() = ToWire(spec);
  v1::HelloResponse response;
  PAGODA_RETURN_IF_ERROR(FromGrpc(cache_->Hello(Context().get(), request, &response)));
  return response;
}

absl::Status WireClient::OpenSession() {
  session_context_ = Context(600);
  session_ = cache_->Session(session_context_.get());
  v1::SessionResponse first;
  if (!session_->Read(&first)) {
    const grpc::Status status = session_->Finish();
    session_.reset();
    return status.ok() ? absl::UnavailableError("no first message") : FromGrpc(status);
  }
  session_id_ = first.session_id();
  return absl::OkStatus();
}

grpc::Status WireClient::CloseSession() {
  session_->WritesDone();
  v1::SessionResponse ignored;
  while (session_->Read(&ignored)) {
  }
  const grpc::Status status = session_->Finish();
  session_.reset();
  return status;
}

void WireClient::BreakSession() {
  if (session_ == nullptr) return;
  session_context_->TryCancel();
  (void)session_->Finish();
  session_.reset();
}

void WireClient::OpenSequence(const std::string& id, uint64_t length, uint32_t window,
                              v1::Precision precision) {
  v1::SessionRequest request;
  v1::OpenSequence& open = *request.mutable_open_sequence();
  open.set_sequence_id(id);
  open.set_length_tokens(length);
  open.set_window_tokens(window);
  open.set_precision(precision);
  Send(request);
}

absl::StatusOr<std::vector<v1::PushResponse>> WireClient::Push(const std::vector<TestPage>& pages,
                                                               const std::string& sequence_id) {
  const std::unique_ptr<grpc::ClientContext> context = Context();
  const auto stream = cache_->Push(context.get());
  for (size_t i = 0; i < pages.size(); ++i) {
    v1::PushRequest request;
    if (i == 0) request.set_session_id(session_id_);
    if (i == 0) request.set_sequence_id(sequence_id);
    *request.mutable_page() = pages[i].start;
    for (size_t s = 0; s < pages[i].segments.size(); ++s) {
      v1::Piece& piece = *request.add_pieces();
      piece.set_segment_index(static_cast<uint32_t>(s));
      piece.set_data(pages[i].segments[s]);
    }
    request.set_commit(true);
    if (!stream->Write(request)) break;
  }
  stream->WritesDone();
  std::vector<v1::PushResponse> responses;
  v1::PushResponse response;
  while (stream->Read(&response)) responses.push_back(response);
  PAGODA_RETURN_IF_ERROR(FromGrpc(stream->Finish()));
  return responses;
}

v1::LookupRequest WireClient::LookupFor(const ModelSpec& spec, const v1::ScopeInfo& scope,
                                        const std::vector<std::string>& keys,
                                        const std::string& request_id) {
  v1::LookupRequest request;
  request.set_session_id(session_id_);
  request.set_request_id(request_id);
  request.set_identity(std::string(IdentityOf(spec).view()));
  v1::KeyChain& chain = *request.add_chains();
  chain.set_scope_id(scope.scope_id());
  for (const std::string& key : keys) chain.add_keys(key);
  return request;
}

absl::StatusOr<v1::LookupResponse> WireClient::Lookup(const v1::LookupRequest& request) {
  v1::LookupResponse response;
  PAGODA_RETURN_IF_ERROR(FromGrpc(cache_->Lookup(Context().get(), request, &response)));
  return response;
}

absl::StatusOr<v1::LookupResponse> WireClient::LookupUntil(const v1::LookupRequest& request,
                                                           v1::Precision precision) {
  for (int i = 0; i < 500; ++i) {
    PAGODA_ASSIGN_OR_RETURN(v1::LookupResponse response, Lookup(request));
    bool done = response.pages_size() > 0;
    for (const v1::PageInfo& page : response.pages()) {
      done &= page.state() == v1::PAGE_STATE_READY;
      done &= precision == v1::PRECISION_UNSPECIFIED || page.precision() == precision;
    }
    if (done) return response;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::DeadlineExceededError("pages did not reach the wanted state in 5 s");
}

v1::FetchRequest WireClient::FetchFor(const v1::LookupResponse& lookup) {
  v1::FetchRequest request;
  request.set_session_id(session_id_);
  request.set_lease_id(lookup.lease_id());
  request.set_page_count(static_cast<uint32_t>(lookup.pages_size()));
  return request;
}

absl::StatusOr<std::vector<FetchedPage>> WireClient::Fetch(const v1::FetchRequest& request) {
  const std::unique_ptr<grpc::ClientContext> context = Context();
  const auto stream = cache_->Fetch(context.get());
  (void)stream->Write(request);
  (void)stream->WritesDone();
  std::map<uint32_t, FetchedPage> pages;
  absl::Status end;
  v1::FetchResponse response;
  while (stream->Read(&response)) {
    end = absl::Status(static_cast<absl::StatusCode>(response.end().code()),
                       response.end().message());
    for (const v1::PageStart& start : response.starts()) {
      PAGODA_ASSIGN_OR_RETURN(PageHeader header, DecodePageHeader(AsBytes(start.header())));
      FetchedPage& page = pages[start.page_index()];
      page.segments.resize(header.segments.size());
      page.header = std::move(header);
    }
    for (const v1::Piece& piece : response.pieces()) {
      std::string& segment = pages[piece.page_index()].segments.at(piece.segment_index());
      if (segment.size() != piece.offset()) return absl::DataLossError("a piece out of order");
      segment += piece.data();
    }
    for (const v1::PageEnd& end : response.ends()) {
      pages[end.page_index()].code = end.code();
      pages[end.page_index()].message = end.message();
    }
  }
  PAGODA_RETURN_IF_ERROR(FromGrpc(stream->Finish()));
  PAGODA_RETURN_IF_ERROR(end);
  std::vector<FetchedPage> out;
  for (auto& [index, page] : pages) out.push_back(std::move(page));
  return out;
}

absl::StatusOr<v1::StatusResponse> WireClient::Status() {
  v1::StatusResponse response;
  PAGODA_RETURN_IF_ERROR(FromGrpc(admin_->Status(Context().get(), v1::StatusRequest(), &response)));
  return response;
}

// grpc.health.v1.Health/Check by hand: HealthCheckRequest has one text, the answer one enum.
std::string WireClient::Health(const std::string& service) {
  std::string request;
  if (!service.empty()) {
    request = absl::StrCat("\n", std::string(1, static_cast<char>(service.size())), service);
  }
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);
  grpc::ByteBuffer answer;
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel_.get(), method, Context().get(), message, &answer);
  if (!status.ok()) return status.error_message();
  grpc::Slice bytes;
  if (!answer.DumpToSingleSlice(&bytes).ok() || bytes.size() != 2) return "malformed";
  return bytes.begin()[1] == 1 ? "serving" : "not serving";
}

}  // namespace pagoda
