#include "cache-server/session_reactor.h"

#include <deque>
#include <memory>

#include "absl/strings/str_format.h"
#include "cache-server/request_fields.h"
#include "proto/wire.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kEventsMax = 64;

class SessionReactor : public grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>,
                       public SessionStream {
 public:
  explicit SessionReactor(ServiceContext& context)
      : context_(context), timer_(context.metrics, RpcMethod::kSession) {}

  void Start(std::shared_ptr<SessionReactor> self, grpc::CallbackServerContext* call);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnSessionEnd(SessionEndReason reason) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDraining() override ABSL_LOCKS_EXCLUDED(mutex_);
  CallerPtr caller() const override { return caller_; }

 private:
  absl::Status Apply(const v1::SessionRequest& request);
  absl::Status OpenSequence(const v1::OpenSequence& open);
  void Say(v1::SessionResponse event) ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts or continues writing, and ends the stream when that is due and nothing is under way.
  void Continue() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceContext& context_;
  RpcTimer timer_;
  std::shared_ptr<SessionReactor> self_;  // until OnDone()
  v1::SessionRequest incoming_;           // gRPC's while a read is under way
  CallerPtr caller_;                      // set before the session opens
  bool opened_ = false;                   // set before the first read
  SessionId id_;

  absl::Mutex mutex_;
  std::deque<v1::SessionResponse> events_ ABSL_GUARDED_BY(mutex_);  // the front is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

void SessionReactor::Start(std::shared_ptr<SessionReactor> self,
                           grpc::CallbackServerContext* call) {
  self_ = std::move(self);
  absl::StatusOr<CallerPtr> caller = context_.callers.Identify(call->client_metadata());
  if (!caller.ok()) return EndWith(caller.status());
  caller_ = *std::move(caller);
  absl::StatusOr<SessionId> id = context_.sessions.Open(caller_->tenant(), self_);
  if (!id.ok()) return EndWith(id.status());
  id_ = *id;
  opened_ = true;
  LogDebug("session_opened", {{"session", id_.hex()}, {"tenant", caller_->tenant()}});
  v1::SessionResponse first;
  first.set_session_id(std::string(id_.view()));
  first.set_heartbeat_seconds(absl::ToDoubleSeconds(context_.options.heartbeat));
  Say(std::move(first));
  StartRead(&incoming_);
}

absl::Status SessionReactor::OpenSequence(const v1::OpenSequence& open) {
  PAGODA_ASSIGN_OR_RETURN(const SequenceId id,
                          ParseId<SequenceId>("sequence_id", open.sequence_id()));
  SequenceShape shape;
  shape.length_tokens = open.length_tokens();
  shape.window_tokens = open.window_tokens();
  PAGODA_ASSIGN_OR_RETURN(shape.wanted, FromWire(open.precision(), Precision::kQ4));
  return context_.encoder.OpenSequence(id_, id, shape);
}

absl::Status SessionReactor::Apply(const v1::SessionRequest& request) {
  if (request.ByteSizeLong() > 4096) {
    return absl::ResourceExhaustedError("session message of more than 4096 bytes");
  }
  switch (request.event_case()) {
    case v1::SessionRequest::kOpenSequence:
      return OpenSequence(request.open_sequence());
    case v1::SessionRequest::kAdvanceSequence: {
      PAGODA_ASSIGN_OR_RETURN(
          const SequenceId id,
          ParseId<SequenceId>("sequence_id", request.advance_sequence().sequence_id()));
      return context_.encoder.AdvanceSequence(id_, id, request.advance_sequence().length_tokens());
    }
    case v1::SessionRequest::kCloseSequence: {
      PAGODA_ASSIGN_OR_RETURN(
          const SequenceId id,
          ParseId<SequenceId>("sequence_id", request.close_sequence().sequence_id()));
      return context_.encoder.CloseSequence(id_, id);
    }
    case v1::SessionRequest::kHeartbeat: {
      v1::SessionResponse alive;  // The client, too, must notice when the other side has stopped.
      alive.set_heartbeat_seconds(absl::ToDoubleSeconds(context_.options.heartbeat));
      Say(std::move(alive));
      return absl::OkStatus();
    }
    case v1::SessionRequest::EVENT_NOT_SET:  // An event of a later version: a sign of life.
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

void SessionReactor::OnReadDone(bool ok) {
  if (!ok) {                    // The client closed its side, or is gone.
    EndWith(absl::OkStatus());  // First: ending the session would give another reason.
    return context_.sessions.End(id_, SessionEndReason::kClosed);
  }
  if (!context_.sessions.Touch(id_).ok()) return;  // OnSessionEnd() ends the stream.
  if (const absl::Status status = Apply(incoming_); !status.ok()) {
    v1::SessionResponse event;
    event.set_error_code(static_cast<int32_t>(status.code()));
    event.set_error_message(std::string(status.message()));
    Say(std::move(event));
  }
  // What came in between the session's end and this event must not stay.
  if (!context_.sessions.Touch(id_).ok()) return context_.encoder.CloseSession(id_);
  StartRead(&incoming_);
}

void SessionReactor::Say(v1::SessionResponse event) {
  bool overflow;
  {
    absl::MutexLock lock(&mutex_);
    overflow = events_.size() >= kEventsMax;
    if (!overflow) events_.push_back(std::move(event));
  }
  if (overflow) {
    return EndWith(absl::ResourceExhaustedError("the client does not read the session's events"));
  }
  Continue();
}

void SessionReactor::Continue() {
  const v1::SessionResponse* event = nullptr;
  bool finish = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_ || writing_) return;
    if (!events_.empty()) {
      writing_ = true;
      event = &events_.front();  // Stays in place: only OnWriteDone() removes it.
    } else if (ending_) {
      finished_ = true;
      finish = true;
      status = end_status_;
    }
  }
  if (event != nullptr) return StartWrite(event);
  if (!finish) return;
  timer_.Finish(status.code());
  Finish(ToGrpc(status));
}

void SessionReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    events_.pop_front();
    if (!ok) events_.clear();
  }
  Continue();
}

void SessionReactor::EndWith(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (ending_) return;
    ending_ = true;
    end_status_ = status;
    // Only what is being written stays.
    while (events_.size() > (writing_ ? 1u : 0u)) events_.pop_back();
  }
  Continue();
}

void SessionReactor::OnCancel() {
  EndWith(absl::CancelledError("the call was cancelled"));
  if (opened_) context_.sessions.End(id_, SessionEndReason::kClosed);
}

void SessionReactor::OnSessionEnd(SessionEndReason reason) {
  switch (reason) {
    case SessionEndReason::kClosed:
      return EndWith(absl::OkStatus());
    case SessionEndReason::kTimeout:
      return EndWith(absl::DeadlineExceededError("the session was silent for too long"));
    case SessionEndReason::kShutdown:
      return EndWith(absl::UnavailableError("the server is stopping; use another one"));
  }
}

void SessionReactor::OnDraining() {
  v1::SessionResponse event;
  event.set_draining(true);
  Say(std::move(event));
}

void SessionReactor::OnDone() { self_.reset(); }

}  // namespace

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* StartSession(
    ServiceContext& context, grpc::CallbackServerContext* call) {
  auto reactor = std::make_shared<SessionReactor>(context);
  SessionReactor* raw = reactor.get();
  raw->Start(std::move(reactor), call);
  return raw;
}

}  // namespace pagoda
