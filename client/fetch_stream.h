// Open Fetch calls, used for one request after another: a call of its own for each costs more than
// the bytes of a small page.
//
// Threads    every method from any thread; a sink is called on gRPC's threads, one call at a time
// Ownership  who starts a request keeps its sink until OnEnd()
// Limits     a stream answers one request at a time; kIdleStreamsMax are kept for the next ones
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace pagoda::client {

// Who asked.
class FetchSink {
 public:
  virtual ~FetchSink() = default;
  // True: that was the answer's last message. An error ends the stream.
  virtual absl::StatusOr<bool> OnMessage(const grpc::ByteBuffer& message) = 0;
  // Last. OK: the answer is complete; else why the stream broke.
  virtual void OnEnd(const absl::Status& status) = 0;
};

class FetchStreams;

// One call.
class FetchStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                    public std::enable_shared_from_this<FetchStream> {
 public:
  explicit FetchStream(std::weak_ptr<FetchStreams> pool, std::string session_id)
      : pool_(std::move(pool)), session_id_(std::move(session_id)) {}

  void Open(grpc::GenericStub& stub, const std::string& token, const std::string& request,
            FetchSink& sink) ABSL_LOCKS_EXCLUDED(mutex_);
  // REQUIRES: no answer is under way. False: the stream is over.
  bool Ask(const std::string& request, FetchSink& sink) ABSL_LOCKS_EXCLUDED(mutex_);
  // OnEnd() comes soon, if it has not come yet; nobody else's answer is touched.
  void Cancel(const FetchSink& sink) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitDone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  const std::string& session_id() const { return session_id_; }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void TakeArrived() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAnswer(FetchSink& sink) ABSL_LOCKS_EXCLUDED(mutex_);
  void Break(absl::Status error) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return sink_ == nullptr && !writing_ && !closing_ && !over_;
  }
  void ReturnToPool();

  const std::weak_ptr<FetchStreams> pool_;
  const std::string session_id_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;  // gRPC's while a write is under way
  grpc::ByteBuffer message_;  // gRPC's while a read is

  absl::Mutex mutex_;
  std::shared_ptr<FetchStream> self_ ABSL_GUARDED_BY(mutex_);  // until OnDone()
  FetchSink* sink_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<grpc::ByteBuffer> arrived_ ABSL_GUARDED_BY(mutex_);
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;  // somebody hands arrived_ to the sink
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // no further request
  bool over_ ABSL_GUARDED_BY(mutex_) = false;     // no further message
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

class FetchStreams : public std::enable_shared_from_this<FetchStreams> {
 public:
  static constexpr size_t kIdleStreamsMax = 8;

  FetchStreams(grpc::GenericStub& stub, std::string token)
      : stub_(stub), token_(std::move(token)) {}
  // Ends what is idle, and waits for that; what comes back from now on ends, too.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Asks on an idle stream of that session, which may have broken unnoticed, or on a new one;
  // `fresh`: on a new one.
  std::shared_ptr<FetchStream> Start(const std::string& session_id, const std::string& request,
                                     FetchSink& sink, bool fresh) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class FetchStream;
  void Return(std::shared_ptr<FetchStream> stream) ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::GenericStub& stub_;
  const std::string token_;

  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<FetchStream>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::client
