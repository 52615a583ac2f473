// One Session stream: opens it, sends what is queued, says when it ended. When to send heartbeats
// and what to do at its end is the client's decision.
//
// Threads    every method from any thread.
// Ownership  shared_ptr; the stream keeps the object alive until gRPC is done with it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "pagoda/v1/cache.grpc.pb.h"

namespace pagoda::client {

class Session : public grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionResponse> {
 public:
  static std::shared_ptr<Session> Start(v1::Cache::Stub& stub, const std::string& token);

  // The session id once the first answer came; otherwise why not.
  absl::StatusOr<std::string> WaitOpen(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  void Send(v1::SessionRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  // When the daemon last said anything, on the monotonic clock.
  absl::Duration last_heard() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Duration heartbeat_interval() const ABSL_LOCKS_EXCLUDED(mutex_);

  void Cancel();  // Asks the stream to end.
  // Why the stream ended; nothing while it lives.
  std::optional<absl::Status> ended() const ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  Session() = default;
  void StartNextWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::ClientContext context_;  // constant after Start()

  // Owned by the stream between StartRead() and OnReadDone().
  v1::SessionResponse response_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<Session> self_ ABSL_GUARDED_BY(mutex_);         // until OnDone()
  std::deque<v1::SessionRequest> queue_ ABSL_GUARDED_BY(mutex_);  // front is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // nothing is sent any more
  std::string session_id_ ABSL_GUARDED_BY(mutex_);
  absl::Duration heartbeat_interval_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(2);
  absl::Duration last_heard_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::client
