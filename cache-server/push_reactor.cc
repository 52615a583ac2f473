#include "cache-server/push_reactor.h"

#include <deque>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "cache-server/page_push.h"
#include "cache-server/push_answer.h"
#include "cache-server/request_fields.h"
#include "proto/piece_codec.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kAnswersMax = 64;  // waiting to be written; beyond, reading pauses

grpc::ByteBuffer Serialize(const v1::PushResponse& response) {
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

class PushReactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                    public SessionStream {
 public:
  PushReactor(ServiceContext& context, grpc::CallbackServerContext* call)
      : context_(context), call_(call), timer_(context.metrics, RpcMethod::kPush) {}

  void Start(std::shared_ptr<PushReactor> self);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override {}  // Reads and writes under way fail and end the stream.
  void OnDone() override;
  void OnSessionEnd(SessionEndReason reason) override ABSL_LOCKS_EXCLUDED(page_mutex_, mutex_);

 private:
  absl::Status Process() ABSL_LOCKS_EXCLUDED(page_mutex_, mutex_);
  absl::Status JoinSession(const v1::PushRequest& request);
  void CommitPage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(page_mutex_);
  void Answer(const PagePush& page, const absl::StatusOr<PushedPage>& pushed);
  void Continue() ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishOnce(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;  // lives until it is finished
  RpcTimer timer_;
  std::shared_ptr<PushReactor> self_;  // until OnDone()
  CallerPtr caller_;
  grpc::ByteBuffer incoming_;  // owned by gRPC while a read is under way
  // Set by the first message, then constant.
  bool joined_ = false;
  SessionId session_;
  std::optional<SequenceId> sequence_;
  bool transfer_started_ = false;

  absl::Mutex page_mutex_;
  std::optional<PagePush> page_ ABSL_GUARDED_BY(page_mutex_);
  bool session_ended_ ABSL_GUARDED_BY(page_mutex_) = false;

  absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(page_mutex_);
  std::deque<grpc::ByteBuffer> answers_ ABSL_GUARDED_BY(mutex_);  // the front is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool input_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

void PushReactor::Start(std::shared_ptr<PushReactor> self) {
  self_ = std::move(self);
  absl::StatusOr<CallerPtr> caller = context_.callers.Identify(call_->client_metadata());
  if (!caller.ok()) return FinishOnce(caller.status());
  caller_ = *std::move(caller);
  transfer_started_ = true;
  context_.metrics.OnTransferStart(TransferDirection::kIn);
  Continue();
}

// Starts what can be started: a write if an answer waits, a read if there is room for its answers,
// the end when the input is over and everything is written.
void PushReactor::Continue() {
  bool write = false;
  bool read = false;
  bool finish = false;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    write = !writing_ && !answers_.empty();
    if (write) writing_ = true;
    read = !reading_ && !input_over_ && answers_.size() < kAnswersMax;
    if (read) reading_ = true;
    finish = input_over_ && !reading_ && answers_.empty();
  }
  if (write) {
    const grpc::ByteBuffer* answer;
    {
      absl::MutexLock lock(&mutex_);
      answer = &answers_.front();  // Stays in place: only OnWriteDone() removes it.
    }
    StartWrite(answer);
  }
  if (read) StartRead(&incoming_);
  if (finish) {
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      status = end_status_;
    }
    FinishOnce(status);
  }
}

void PushReactor::OnReadDone(bool ok) {
  absl::Status status;
  if (ok) status = Process();
  {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    if (!ok || !status.ok()) {
      input_over_ = true;
      end_status_ = status;
    }
  }
  Continue();
}

void PushReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    answers_.pop_front();
    if (!ok) {
      input_over_ = true;
      end_status_ = absl::CancelledError("the client is gone");
      answers_.clear();
    }
  }
  Continue();
}

absl::Status PushReactor::JoinSession(const v1::PushRequest& request) {
  PAGODA_ASSIGN_OR_RETURN(session_, ParseId<SessionId>("session_id", request.session_id()));
  if (!request.sequence_id().empty()) {
    PAGODA_ASSIGN_OR_RETURN(sequence_, ParseId<SequenceId>("sequence_id", request.sequence_id()));
  }
  PAGODA_RETURN_IF_ERROR(context_.sessions.AddStream(session_, caller_->tenant(), self_));
  joined_ = true;
  return absl::OkStatus();
}

absl::Status PushReactor::Process() {
  PAGODA_ASSIGN_OR_RETURN(const PieceMessageReader reader,
                          PieceMessageReader::Parse(incoming_, kPushPiecesField));
  v1::PushRequest request;
  if (!request.ParseFromString(reader.fields())) {
    return absl::InvalidArgumentError("message: malformed bytes");
  }
  if (reader.fields().size() >
      static_cast<size_t>(context_.options.limits.control_message_bytes_max)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("message has %d bytes beside its pieces, control_message_bytes_max is %d",
                        reader.fields().size(), context_.options.limits.control_message_bytes_max));
  }
  if (!joined_) PAGODA_RETURN_IF_ERROR(JoinSession(request));
  absl::MutexLock lock(&page_mutex_);
  if (session_ended_) return absl::NotFoundError("the session has ended; open a new one");
  if (request.has_page()) {
    if (page_.has_value()) {
      Answer(*page_, absl::InvalidArgumentError("commit: is missing, another page began"));
      page_.reset();
    }
    page_.emplace(context_, *caller_, request.page());
  }
  if (!page_.has_value() && (!reader.pieces().empty() || request.commit())) {
    return absl::InvalidArgumentError("pieces or commit: no page was begun");
  }
  for (const PieceView& piece : reader.pieces()) page_->AddPiece(piece);
  if (request.commit()) CommitPage();
  return absl::OkStatus();
}

void PushReactor::CommitPage() {
  Answer(*page_, CommitPush(context_, session_, sequence_, *page_));
  page_.reset();
}

void PushReactor::Answer(const PagePush& page, const absl::StatusOr<PushedPage>& pushed) {
  const v1::PushResponse response = PushAnswer(context_, page, pushed);
  absl::MutexLock lock(&mutex_);
  answers_.push_back(Serialize(response));
}

void PushReactor::OnSessionEnd(SessionEndReason) {
  {
    absl::MutexLock lock(&page_mutex_);
    session_ended_ = true;
    page_.reset();
  }
  // A client that neither ends the stream nor reads its answers would keep it for ever.
  absl::MutexLock lock(&mutex_);
  if (!finished_) call_->TryCancel();
}

void PushReactor::FinishOnce(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
  }
  timer_.Finish(status.code());
  if (transfer_started_) context_.metrics.OnTransferEnd(TransferDirection::kIn, status.ok());
  Finish(ToGrpc(status));
}

void PushReactor::OnDone() {
  if (joined_) context_.sessions.RemoveStream(session_, this);
  {
    absl::MutexLock lock(&page_mutex_);
    page_.reset();
  }
  self_.reset();
}

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPush(
    ServiceContext& context, grpc::CallbackServerContext* call) {
  auto reactor = std::make_shared<PushReactor>(context, call);
  PushReactor* raw = reactor.get();
  raw->Start(std::move(reactor));
  return raw;
}

}  // namespace pagoda
