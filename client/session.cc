#include "client/session.h"

#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "proto/wire.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"

namespace pagoda::client {
namespace {

// More than a heartbeat and a few sequence events: a daemon that does not read is gone.
constexpr size_t kQueueMax = 4096;

}  // namespace

std::shared_ptr<Session> Session::Start(v1::Cache::Stub& stub, const std::string& token) {
  std::shared_ptr<Session> session(new Session());
  {
    absl::MutexLock lock(&session->mutex_);
    session->self_ = session;
    session->last_heard_ = SystemClock().Monotonic();
    session->queue_.emplace_back().mutable_heartbeat();
    session->writing_ = true;
  }
  // No deadline: the stream lives as long as the client; heartbeats watch it.
  PrepareContext(session->context_, token, absl::InfiniteDuration());
  stub.async()->Session(&session->context_, session.get());
  session->AddHold();  // until the last read: events are sent from outside of gRPC's calls
  session->StartRead(&session->response_);
  {
    absl::MutexLock lock(&session->mutex_);
    session->StartWrite(&session->queue_.front());
  }
  session->StartCall();
  return session;
}

absl::StatusOr<std::string> Session::WaitOpen(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto settled = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !session_id_.empty() || ended_.has_value();
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&settled), timeout)) {
    return absl::DeadlineExceededError(
        absl::StrCat("the daemon did not open a session within ", absl::FormatDuration(timeout)));
  }
  if (ended_.has_value()) {
    return ended_->ok() ? absl::UnavailableError("the daemon closed the session") : *ended_;
  }
  return session_id_;
}

void Session::Send(v1::SessionRequest request) {
  bool overflow = false;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    if (queue_.size() >= kQueueMax) {
      overflow = true;
    } else {
      queue_.push_back(std::move(request));
      if (!writing_) StartNextWrite();
    }
  }
  if (overflow) Cancel();
}

absl::Duration Session::last_heard() const {
  absl::MutexLock lock(&mutex_);
  return last_heard_;
}

absl::Duration Session::heartbeat_interval() const {
  absl::MutexLock lock(&mutex_);
  return heartbeat_interval_;
}

void Session::Cancel() { context_.TryCancel(); }

std::optional<absl::Status> Session::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

void Session::StartNextWrite() {
  writing_ = true;
  StartWrite(&queue_.front());
}

void Session::OnReadDone(bool ok) {
  if (!ok) {
    {
      absl::MutexLock lock(&mutex_);
      over_ = true;
    }
    return RemoveHold();
  }
  {
    absl::MutexLock lock(&mutex_);
    last_heard_ = SystemClock().Monotonic();
    if (!response_.session_id().empty()) session_id_ = response_.session_id();
    if (response_.heartbeat_seconds() > 0) {
      heartbeat_interval_ = absl::Seconds(response_.heartbeat_seconds());
    }
  }
  if (response_.error_code() != 0) {
    LogWarning("session_event_refused", {{"code", absl::StrCat(response_.error_code())},
                                         {"message", response_.error_message()}});
  }
  response_.Clear();
  StartRead(&response_);
}

void Session::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (!ok) return;
  queue_.pop_front();
  if (!queue_.empty() && !over_) StartNextWrite();
}

void Session::OnDone(const grpc::Status& status) {
  std::shared_ptr<Session> self;  // Declared before the lock: outlives it, and keeps this alive.
  absl::MutexLock lock(&mutex_);
  ended_ = FromGrpc(status);
  self = std::move(self_);
}

}  // namespace pagoda::client
