// One Peer call: what this client and the daemon say about a link between their GPUs
// (pagoda/v1/cache.proto).
//
// Threads    every method from any thread
// Ownership  shared_ptr; the call keeps the object alive until gRPC is done with it
// Limits     kUnreadMax messages that nobody took: beyond it the call ends
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

class PeerStream : public grpc::ClientBidiReactor<v1::PeerRequest, v1::PeerResponse> {
 public:
  static constexpr size_t kUnreadMax = 4;

  static std::shared_ptr<PeerStream> Start(v1::Cache::Stub& stub, const std::string& token,
                                           v1::PeerRequest first);

  void Send(v1::PeerRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next message; nothing: it has not come by then. An error: the call is over, and why.
  absl::StatusOr<std::optional<v1::PeerResponse>> Await(absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // OK while it lives.
  absl::Status health() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  PeerStream() = default;

  grpc::ClientContext context_;  // constant after Start()

  // Owned by the call between StartRead() and OnReadDone().
  v1::PeerResponse response_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<PeerStream> self_ ABSL_GUARDED_BY(mutex_);   // until OnDone()
  std::deque<v1::PeerRequest> queue_ ABSL_GUARDED_BY(mutex_);  // the front is being written
  std::deque<v1::PeerResponse> unread_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // nothing is sent any more
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::client
