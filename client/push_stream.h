// One Push stream: a bounded queue of pages, written in order as messages of about 1 MiB whose
// payload is referenced, never copied; answers are matched to pages in order.
//
// Threads    every method from any thread; the callback on a gRPC thread.
// Ownership  shared_ptr; the stream keeps the object and the pages' owners alive until done.
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"
#include "client/messages.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda::client {

class PushStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static std::shared_ptr<PushStream> Start(grpc::GenericStub& stub, PushConfig config,
                                           PushCallback callback);

  absl::Status Push(PushItem item) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Flush(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel();
  // True once the stream is over and its last callback has returned.
  bool WaitDone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Cancels the stream if its oldest page has waited too long. `now` is monotonic.
  void CheckProgress(absl::Duration now) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  struct Pending {
    PushItem item;
    int64_t bytes = 0;
    absl::Duration since;     // monotonic: became the oldest, or was queued
    absl::Duration pushed;    // monotonic
    size_t next_segment = 0;  // the first one not yet written
  };

  PushStream(PushConfig config, PushCallback callback)
      : config_(std::move(config)), callback_(std::move(callback)) {}
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  grpc::ByteBuffer NextMessage(Pending& page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after Start().
  const PushConfig config_;
  const PushCallback callback_;
  grpc::ClientContext context_;

  grpc::ByteBuffer answer_;  // owned by the stream between StartRead() and OnReadDone()

  absl::Mutex mutex_;
  std::shared_ptr<PushStream> self_ ABSL_GUARDED_BY(mutex_);  // until OnDone()
  grpc::ByteBuffer message_ ABSL_GUARDED_BY(mutex_);          // being written
  std::deque<Pending> pages_ ABSL_GUARDED_BY(mutex_);         // unanswered, in order
  size_t written_ ABSL_GUARDED_BY(mutex_) = 0;  // of pages_: completely handed to the stream
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int calling_back_ ABSL_GUARDED_BY(mutex_) = 0;     // answers that callback_ hears right now
  bool lost_pages_ ABSL_GUARDED_BY(mutex_) = false;  // unanswered when the stream ended
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool first_message_ ABSL_GUARDED_BY(mutex_) = true;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more is written
  bool done_ ABSL_GUARDED_BY(mutex_) = false;   // no callback comes any more
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::client
