#include "cache-server/peer_reactor.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "cache-server/peer_links.h"
#include "cache-server/request_fields.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kRequestBytesMax = 4096;

class PeerReactor : public grpc::ServerBidiReactor<v1::PeerRequest, v1::PeerResponse>,
                    public SessionStream,
                    public PeerSink {
 public:
  PeerReactor(ServiceContext& context, grpc::CallbackServerContext* call)
      : context_(context), call_(call), timer_(context.metrics, RpcMethod::kPeer) {}

  void Start(std::shared_ptr<PeerReactor> self) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override { EndWith(absl::CancelledError("the call was cancelled")); }
  void OnDone() override;
  void OnSessionEnd(SessionEndReason) override ABSL_LOCKS_EXCLUDED(mutex_);

  void OnOpened(const PeerLinkId& id, int64_t request_bytes_max) override;
  void OnPages(v1::PeerPages pages) override;
  void OnIdle() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnBroken(const absl::Status& why) override { EndWith(why); }

 private:
  absl::Status Take();
  absl::Status Open(const v1::PeerOpen& open);
  // `idle`: the next request is read after it.
  void Write(v1::PeerResponse response, bool idle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Now if nothing is being written, else after it.
  void EndWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  RpcTimer timer_;
  std::shared_ptr<PeerReactor> self_;  // until OnDone()
  CallerPtr caller_;                   // set before the first read
  v1::PeerRequest incoming_;           // gRPC's while a read is under way
  v1::PeerResponse outgoing_;          // gRPC's while a write is
  // Set by the first request, then constant.
  bool joined_ = false;
  SessionId session_;

  absl::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;  // a read is due once nothing is being written
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

void PeerReactor::Start(std::shared_ptr<PeerReactor> self) {
  self_ = std::move(self);
  absl::StatusOr<CallerPtr> caller = context_.callers.Identify(call_->client_metadata());
  if (!caller.ok()) return EndWith(caller.status());
  caller_ = *std::move(caller);
  if (context_.peers == nullptr) {
    context_.metrics.OnDeviceFallback(DeviceFallback::kAbsent);
    return EndWith(
        absl::UnimplementedError("this daemon has no links to other GPUs; see hbm.peer_links_max"));
  }
  StartRead(&incoming_);
}

void PeerReactor::OnReadDone(bool ok) {
  if (!ok) return EndWith(absl::OkStatus());  // the client wants no more
  if (const absl::Status taken = Take(); !taken.ok()) EndWith(taken);
}

absl::Status PeerReactor::Take() {
  if (incoming_.ByteSizeLong() > kRequestBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("peer message of more than %d bytes", kRequestBytesMax));
  }
  if (!joined_ && incoming_.has_open()) return Open(incoming_.open());
  if (!joined_ || !incoming_.has_fetch()) {
    return absl::InvalidArgumentError(joined_ ? "event: is not fetch, the link is open"
                                              : "event: is not open, which comes first");
  }
  context_.peers->Fetch(this, incoming_.fetch());
  return absl::OkStatus();
}

absl::Status PeerReactor::Open(const v1::PeerOpen& open) {
  constexpr uint64_t kStagingBytesMin = 4096;
  PeerOpening opening;
  opening.caller = caller_;
  if (open.device_uuid().size() != opening.device.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("device_uuid: has %d bytes, expected %d",
                                                      open.device_uuid().size(),
                                                      opening.device.bytes.size()));
  }
  std::copy(open.device_uuid().begin(), open.device_uuid().end(), opening.device.bytes.begin());
  if (open.staging_bytes() < kStagingBytesMin) {
    return absl::InvalidArgumentError(absl::StrFormat("staging_bytes: is %d, expected at least %d",
                                                      open.staging_bytes(), kStagingBytesMin));
  }
  opening.staging_bytes = static_cast<int64_t>(
      std::min(open.staging_bytes(), uint64_t{std::numeric_limits<int64_t>::max()}));
  PAGODA_ASSIGN_OR_RETURN(session_, ParseId<SessionId>("session_id", open.session_id()));
  opening.session = session_;
  PAGODA_RETURN_IF_ERROR(context_.sessions.AddPeerStream(session_, caller_->tenant(), self_));
  joined_ = true;
  context_.peers->Open(self_, std::move(opening));
  return absl::OkStatus();
}

void PeerReactor::OnOpened(const PeerLinkId& id, int64_t request_bytes_max) {
  v1::PeerResponse response;
  v1::PeerOpened& opened = *response.mutable_opened();
  opened.set_link_id(id.bytes.data(), id.bytes.size());
  opened.set_request_bytes_max(static_cast<uint64_t>(request_bytes_max));
  Write(std::move(response), /*idle=*/true);
}

void PeerReactor::OnPages(v1::PeerPages pages) {
  v1::PeerResponse response;
  *response.mutable_pages() = std::move(pages);
  Write(std::move(response), /*idle=*/false);
}

void PeerReactor::Write(v1::PeerResponse response, bool idle) {
  absl::MutexLock lock(&mutex_);
  if (ending_) return;
  outgoing_ = std::move(response);
  idle_ = idle;
  writing_ = true;
  StartWrite(&outgoing_);  // under the lock: the call cannot finish before it
}

void PeerReactor::OnIdle() {
  absl::MutexLock lock(&mutex_);
  if (ending_) return;
  idle_ = writing_;
  if (!writing_) StartRead(&incoming_);
}

void PeerReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (ok && !ending_) {
      if (std::exchange(idle_, false)) StartRead(&incoming_);
      return;
    }
  }
  EndWith(absl::CancelledError("the client is gone"));  // or what ended it before
}

void PeerReactor::EndWith(const absl::Status& status) {
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    if (!ending_) {
      ending_ = true;
      end_status_ = status;
    }
    if (writing_) return;
    finished_ = true;
    why = end_status_;
  }
  timer_.Finish(why.code());
  Finish(ToGrpc(why));
}

// Nobody would look after a message that its client does not read.
void PeerReactor::OnSessionEnd(SessionEndReason) {
  EndWith(absl::UnavailableError("the session has ended; open a new one"));
  absl::MutexLock lock(&mutex_);
  if (!finished_) call_->TryCancel();
}

void PeerReactor::OnDone() {
  if (joined_) {
    context_.sessions.RemoveStream(session_, this);
    context_.peers->Close(this);
  }
  self_.reset();
}

}  // namespace

grpc::ServerBidiReactor<v1::PeerRequest, v1::PeerResponse>* StartPeer(
    ServiceContext& context, grpc::CallbackServerContext* call) {
  auto reactor = std::make_shared<PeerReactor>(context, call);
  PeerReactor* raw = reactor.get();
  raw->Start(std::move(reactor));
  return raw;
}

}  // namespace pagoda
