#include "client/peer_stream.h"

#include <utility>

#include "client/channel.h"
#include "proto/wire.h"

namespace pagoda::client {

std::shared_ptr<PeerStream> PeerStream::Start(v1::Cache::Stub& stub, const std::string& token,
                                              v1::PeerRequest first) {
  std::shared_ptr<PeerStream> stream(new PeerStream());
  // No deadline: the call lives as long as its link.
  PrepareContext(stream->context_, token, absl::InfiniteDuration());
  stub.async()->Peer(&stream->context_, stream.get());
  stream->AddHold();  // until the last read: requests are sent from outside of gRPC's calls
  stream->StartRead(&stream->response_);
  {
    absl::MutexLock lock(&stream->mutex_);
    stream->self_ = stream;
    stream->queue_.push_back(std::move(first));
    stream->StartWrite(&stream->queue_.front());
  }
  stream->StartCall();
  return stream;
}

void PeerStream::Send(v1::PeerRequest request) {
  absl::MutexLock lock(&mutex_);
  if (over_) return;
  queue_.push_back(std::move(request));
  if (queue_.size() == 1) StartWrite(&queue_.front());
}

absl::StatusOr<std::optional<v1::PeerResponse>> PeerStream::Await(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto settled = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !unread_.empty() || ended_.has_value();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&settled), timeout);
  if (ended_.has_value()) return *ended_;
  if (unread_.empty()) return std::optional<v1::PeerResponse>();
  std::optional<v1::PeerResponse> response = std::move(unread_.front());
  unread_.pop_front();
  return response;
}

absl::Status PeerStream::health() const {
  absl::MutexLock lock(&mutex_);
  return ended_.value_or(absl::OkStatus());
}

void PeerStream::OnReadDone(bool ok) {
  bool full = false;
  {
    absl::MutexLock lock(&mutex_);
    over_ = over_ || !ok;
    full = unread_.size() >= kUnreadMax;
    if (ok && !full) unread_.push_back(std::move(response_));
  }
  if (!ok) return RemoveHold();
  if (full) Cancel();
  response_.Clear();
  StartRead(&response_);
}

void PeerStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  if (!ok) return;
  queue_.pop_front();
  if (!queue_.empty() && !over_) StartWrite(&queue_.front());
}

void PeerStream::OnDone(const grpc::Status& status) {
  std::shared_ptr<PeerStream> self;  // Declared before the lock: outlives it, and keeps this alive.
  absl::MutexLock lock(&mutex_);
  absl::Status why = FromGrpc(status);
  if (why.ok()) why = absl::UnavailableError("the daemon ended the call");
  ended_ = std::move(why);
  self = std::move(self_);
}

}  // namespace pagoda::client
