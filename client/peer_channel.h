// The client's end of pages that come from the GPU of a daemon elsewhere: one link at a time, made
// when it is first wanted, thrown away at its first fault, and made again with a new id after a
// pause (Peer in pagoda/v1/cache.proto, storage/device/peer_link.h).
//
// Threads    every method from any thread; one request is under way at a time, and who would wait
//            for it longer than a moment is told UNAVAILABLE
// Ownership  stub and device outlive it
// Errors     FAILED_PRECONDITION, UNIMPLEMENTED  no device or transport on either side, or one GPU
//                                                for both: not tried again before the next session
//            UNAVAILABLE, DEADLINE_EXCEEDED      the link is being made, paused, broken or late
//            others come from the daemon or the device, or name what it sent that cannot be
// Cost       staging_bytes of device memory and of pinned host memory while there is a link; each
//            page is copied to the host once, for its checksums
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/peer_stream.h"
#include "client/peer_verifier.h"
#include "client/shm_channel.h"
#include "storage/device/peer_link.h"

namespace pagoda::client {

class PeerChannel {
 public:
  struct Options {
    DeviceRuntime* device = nullptr;
    PeerOptions peer;
    std::string token;
    absl::Duration pause;      // after the first failure in a row
    absl::Duration join_wait;  // how long a caller waits for a link that is being made
  };
  using Pages = std::vector<absl::StatusOr<PageOnDevice>>;

  PeerChannel(v1::Cache::Stub& stub, Options options)
      : stub_(stub), options_(std::move(options)), pause_(options_.pause) {}
  ~PeerChannel();

  // All of them, each there or with a status of its own.
  absl::StatusOr<Pages> Fetch(const std::string& session_id, const ShmChannel::Wanted& wanted,
                              const DeviceTargets& targets) ABSL_LOCKS_EXCLUDED(mutex_);
  // Now and then: links are joined, or seen to break, and what they held is let go.
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Link {
    std::string session_id;
    std::shared_ptr<PeerStream> stream;
    std::unique_ptr<PeerTransport> transport;
    std::unique_ptr<PeerLink> link;
    bool opened = false;         // its id has come
    absl::Duration opens_until;  // on the monotonic clock
    int64_t request_bytes_max = 0;
  };
  // What one answer brings.
  struct Incoming {
    PeerRequest half;
    int64_t bytes = 0;
    std::vector<size_t> places;  // in Pages, of those below
    std::vector<PeerVerifier::Landed> landed;
  };

  absl::StatusOr<Pages> FetchAll(const std::string& session_id, const ShmChannel::Wanted& wanted,
                                 const DeviceTargets& targets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One request: adds at least one page. An error: of all that were not added.
  absl::Status FetchSome(const ShmChannel::Wanted& wanted, const DeviceTargets& targets,
                         absl::Duration end, Pages& pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::PeerPages> Ask(const ShmChannel::Wanted& wanted, uint32_t done,
                                    absl::Duration end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakePage(const v1::PeerPage& said, const ShmChannel::Wanted& wanted,
                        const DeviceTargets& targets, Pages& pages, Incoming& incoming)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Receive(PeerRequest half, absl::Duration end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Verify(const Incoming& incoming, absl::Duration end, Pages& pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // A link that is ready.
  absl::Status AwaitLink(const std::string& session_id, absl::Duration end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Begin(const std::string& session_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Make(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One look at the link; an error has ended it.
  absl::Status Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TryStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PollOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // There is no link, and none for a while. Returns `why`.
  absl::Status Drop(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  v1::Cache::Stub& stub_;
  const Options options_;

  absl::Mutex mutex_;  // of the link: held while a request is under way
  std::unique_ptr<Link> link_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Link>> old_ ABSL_GUARDED_BY(mutex_);  // the device may be at them
  std::unique_ptr<PeerVerifier> verifier_ ABSL_GUARDED_BY(mutex_);
  uint32_t tag_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string failed_session_id_ ABSL_GUARDED_BY(mutex_);  // of last_error_
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_try_ ABSL_GUARDED_BY(mutex_);  // on the monotonic clock
};

}  // namespace pagoda::client
