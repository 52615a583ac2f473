#include "cache-server/fetch_reactor.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "cache-server/fetch_answer.h"
#include "cache-server/request_fields.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

class FetchReactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                     public SessionStream,
                     public FetchSink {
 public:
  FetchReactor(ServiceContext& context, grpc::CallbackServerContext* call)
      : context_(context), call_(call) {}

  void Start(std::shared_ptr<FetchReactor> self) {
    self_ = std::move(self);
    absl::StatusOr<CallerPtr> caller = context_.callers.Identify(call_->client_metadata());
    if (!caller.ok()) return EndWith(caller.status());
    caller_ = *std::move(caller);
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override { EndWith(absl::CancelledError("the call was cancelled")); }
  void OnDone() override;
  void OnSessionEnd(SessionEndReason) override ABSL_LOCKS_EXCLUDED(mutex_);

  void CheckProgress(absl::Duration now) override ABSL_LOCKS_EXCLUDED(mutex_);

  void Write(const grpc::ByteBuffer& message) override { StartWrite(&message); }
  void OnAnswered(bool written) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<v1::FetchRequest> Parse();
  absl::Status JoinSession(const v1::FetchRequest& request);
  // Now if no answer is under way, else after it.
  void EndWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  std::shared_ptr<FetchReactor> self_;  // until OnDone()
  CallerPtr caller_;                    // set before the first read
  grpc::ByteBuffer incoming_;           // gRPC's while a read is under way
  // Set by the first request, then constant.
  bool joined_ = false;
  SessionId session_;

  absl::Mutex mutex_;
  std::shared_ptr<FetchAnswer> answer_ ABSL_GUARDED_BY(mutex_);  // null: waits for a request
  absl::Duration answer_until_ ABSL_GUARDED_BY(mutex_);          // on the monotonic clock
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

void FetchReactor::OnReadDone(bool ok) {
  if (!ok) return EndWith(absl::OkStatus());  // the client wants no more
  std::shared_ptr<FetchAnswer> answer;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    answer = MakeFetchAnswer(context_, *this);
    answer_ = answer;
    answer_until_ = context_.clock.Monotonic() + context_.options.lease;
  }
  const absl::StatusOr<v1::FetchRequest> request = Parse();
  absl::Status status = request.status();
  if (status.ok()) status = JoinSession(*request);
  if (status.ok()) return answer->Start(*caller_, *request);
  if (!joined_) {  // no session would ever end this stream
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    end_status_ = status;
  }
  answer->Refuse(status);
}

absl::StatusOr<v1::FetchRequest> FetchReactor::Parse() {
  if (incoming_.Length() > static_cast<size_t>(context_.options.limits.control_message_bytes_max)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("message of %d bytes, control_message_bytes_max is %d", incoming_.Length(),
                        context_.options.limits.control_message_bytes_max));
  }
  v1::FetchRequest request;
  if (!grpc::SerializationTraits<v1::FetchRequest>::Deserialize(&incoming_, &request).ok()) {
    return absl::InvalidArgumentError("message: malformed bytes");
  }
  return request;
}

absl::Status FetchReactor::JoinSession(const v1::FetchRequest& request) {
  if (joined_) {
    if (request.session_id() == session_.view()) return absl::OkStatus();
    return absl::InvalidArgumentError("session_id: not that of the stream's first request");
  }
  PAGODA_ASSIGN_OR_RETURN(session_, ParseId<SessionId>("session_id", request.session_id()));
  PAGODA_RETURN_IF_ERROR(context_.sessions.AddFetchStream(session_, caller_->tenant(), self_));
  joined_ = true;
  return absl::OkStatus();
}

void FetchReactor::OnWriteDone(bool ok) {
  std::shared_ptr<FetchAnswer> answer;
  {
    absl::MutexLock lock(&mutex_);
    answer = answer_;
  }
  answer->OnWritten(ok);
}

void FetchReactor::OnAnswered(bool written) {
  std::shared_ptr<FetchAnswer> answered;  // ends without the lock
  bool finish = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    answered = std::move(answer_);
    answer_ = nullptr;
    finish = ending_ || !written;
    finished_ = finish;
    status = ending_ ? end_status_ : absl::CancelledError("the client is gone");
  }
  finish ? Finish(ToGrpc(status)) : StartRead(&incoming_);
}

void FetchReactor::EndWith(const absl::Status& status) {
  std::shared_ptr<FetchAnswer> answer;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    if (!ending_) {
      ending_ = true;
      end_status_ = status;
    }
    answer = answer_;
    finished_ = answer == nullptr;
  }
  answer != nullptr ? answer->GiveUp(status) : Finish(ToGrpc(status));
}

// Its leases are gone, and nobody would look after an answer that its client does not read.
void FetchReactor::OnSessionEnd(SessionEndReason) {
  EndWith(absl::UnavailableError("the session has ended; open a new one"));
  absl::MutexLock lock(&mutex_);
  if (answer_ != nullptr) call_->TryCancel();
}

// A client that does not read must not keep pages longer than their lease.
void FetchReactor::CheckProgress(absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  // Under the lock: while there is an answer the call is not finished, and *call_ lives.
  if (answer_ != nullptr && now > answer_until_) call_->TryCancel();
}

void FetchReactor::OnDone() {
  if (joined_) context_.sessions.RemoveStream(session_, this);
  self_.reset();
}

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartFetch(
    ServiceContext& context, grpc::CallbackServerContext* call) {
  auto reactor = std::make_shared<FetchReactor>(context, call);
  FetchReactor* raw = reactor.get();
  raw->Start(std::move(reactor));
  return raw;
}

}  // namespace pagoda
