#include "client/fetch_stream.h"

#include <utility>

#include "client/channel.h"
#include "proto/wire.h"

namespace pagoda::client {
namespace {

constexpr char kFetchMethod[] = "/pagoda.v1.Cache/Fetch";

}  // namespace

void FetchStream::Open(grpc::GenericStub& stub, const std::string& token,
                       const std::string& request, FetchSink& sink) {
  {
    absl::MutexLock lock(&mutex_);
    self_ = shared_from_this();
    sink_ = &sink;
    writing_ = true;
  }
  // Every answer has a deadline of its own.
  PrepareContext(context_, token, absl::InfiniteDuration());
  const grpc::Slice slice(request);
  request_ = grpc::ByteBuffer(&slice, 1);
  stub.PrepareBidiStreamingCall(&context_, kFetchMethod, {}, this);
  AddHold();  // until the last read: requests come from outside of gRPC's calls
  StartWrite(&request_);
  StartRead(&message_);
  StartCall();
}

bool FetchStream::Ask(const std::string& request, FetchSink& sink) {
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || closing_) return false;
    sink_ = &sink;
    writing_ = true;
    AddHold();  // the read may end now, and with it the other hold
  }
  const grpc::Slice slice(request);
  request_ = grpc::ByteBuffer(&slice, 1);
  StartWrite(&request_);
  RemoveHold();
  return true;
}

void FetchStream::Cancel(const FetchSink& sink) {
  {
    absl::MutexLock lock(&mutex_);
    if (sink_ != &sink) return;
    closing_ = true;  // so that no other request meets the cancellation
  }
  context_.TryCancel();
}

void FetchStream::Close() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  context_.TryCancel();
}

void FetchStream::WaitDone(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&done_), timeout);
}

void FetchStream::OnReadDone(bool ok) {
  bool mine;
  {
    absl::MutexLock lock(&mutex_);
    over_ = !ok;
    if (ok) arrived_.push_back(std::move(message_));
    mine = ok && !taking_;
    if (mine) taking_ = true;
  }
  if (!ok) return RemoveHold();
  // The next message travels while this one is copied. Its OnReadDone() may come on another thread
  // before we are done; it then leaves its message to us.
  message_ = grpc::ByteBuffer();
  StartRead(&message_);
  if (mine) TakeArrived();
}

void FetchStream::TakeArrived() {
  while (true) {
    grpc::ByteBuffer message;
    FetchSink* sink;
    {
      absl::MutexLock lock(&mutex_);
      if (arrived_.empty() || !error_.ok()) {
        taking_ = false;
        return;
      }
      message = std::move(arrived_.front());
      arrived_.pop_front();
      sink = sink_;
    }
    if (sink == nullptr) {
      Break(absl::DataLossError("fetch: a message that nobody asked for"));
      continue;
    }
    const absl::StatusOr<bool> last = sink->OnMessage(message);
    if (!last.ok()) {
      Break(last.status());
    } else if (*last) {
      EndAnswer(*sink);
    }
  }
}

void FetchStream::EndAnswer(FetchSink& sink) {
  bool idle;
  {
    absl::MutexLock lock(&mutex_);
    sink_ = nullptr;
    idle = Idle();
  }
  if (idle) ReturnToPool();  // first: who hears the end may ask again
  sink.OnEnd(absl::OkStatus());
}

void FetchStream::OnWriteDone(bool ok) {
  bool idle;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    idle = ok && Idle();  // the answer was faster
  }
  if (idle) ReturnToPool();
}

void FetchStream::Break(absl::Status error) {
  {
    absl::MutexLock lock(&mutex_);
    error_ = std::move(error);
    closing_ = true;
  }
  context_.TryCancel();
}

void FetchStream::ReturnToPool() {
  if (const std::shared_ptr<FetchStreams> pool = pool_.lock()) {
    pool->Return(shared_from_this());
  } else {
    Close();
  }
}

void FetchStream::OnDone(const grpc::Status& status) {
  FetchSink* sink;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    sink = std::exchange(sink_, nullptr);
    over_ = true;
    why = error_.ok() ? FromGrpc(status) : error_;
  }
  if (why.ok()) why = absl::UnavailableError("fetch: the daemon ended the stream");
  if (sink != nullptr) sink->OnEnd(why);
  std::shared_ptr<FetchStream> self;  // ends without the lock
  absl::MutexLock lock(&mutex_);
  done_ = true;
  self = std::move(self_);
}

void FetchStreams::Stop() {
  std::vector<std::shared_ptr<FetchStream>> idle;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    idle = std::move(idle_);
    idle_.clear();
  }
  for (const std::shared_ptr<FetchStream>& stream : idle) stream->Close();
  for (const std::shared_ptr<FetchStream>& stream : idle) stream->WaitDone(absl::Seconds(5));
}

std::shared_ptr<FetchStream> FetchStreams::Start(const std::string& session_id,
                                                 const std::string& request, FetchSink& sink,
                                                 bool fresh) {
  while (!fresh) {
    std::shared_ptr<FetchStream> stream;
    {
      absl::MutexLock lock(&mutex_);
      if (idle_.empty()) break;
      stream = std::move(idle_.back());
      idle_.pop_back();
    }
    if (stream->session_id() == session_id && stream->Ask(request, sink)) return stream;
    stream->Close();
  }
  auto stream = std::make_shared<FetchStream>(weak_from_this(), session_id);
  stream->Open(stub_, token_, request, sink);
  return stream;
}

void FetchStreams::Return(std::shared_ptr<FetchStream> stream) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stopped_ && idle_.size() < kIdleStreamsMax) {
      idle_.push_back(std::move(stream));
      return;
    }
  }
  stream->Close();
}

}  // namespace pagoda::client
