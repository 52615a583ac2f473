// The client's end of pushing through shared memory: a staging area that this process alone writes,
// and one connection over which pages in it are named to the daemon (proto/shm_protocol.h).
//
//   Push()    queue -> copied into the area -> named -> answered -> the range is free again
//   Reserve() memory of the area: a page that lies there whole is named at once, without a copy
//
// Threads    every method from any thread; `done` on the channel's own thread, or on the one that
//            calls Stop()
// Ownership  reserved memory may outlive the channel, and is then only memory
// Errors     UNAVAILABLE        broken, or stopped: push over gRPC
//            RESOURCE_EXHAUSTED Reserve(): the area is taken
// Limits     one area of staging_bytes; shm::kPushesMax pages are unanswered at a time, others
//            queue: who pushes bounds that
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/messages.h"

namespace pagoda::client {

class ShmPushChannel {
 public:
  struct Options {
    int64_t staging_bytes = int64_t{64} << 20;
    absl::Duration answer_timeout = absl::Seconds(10);  // for the oldest page; then it is broken
  };
  // Never waits: what is pushed before the daemon gave the area is queued.
  static absl::StatusOr<std::shared_ptr<ShmPushChannel>> Connect(const std::string& path,
                                                                 const std::string& session_id,
                                                                 const Options& options);
  virtual ~ShmPushChannel() = default;  // Stop()

  // Once a page. `not_taken`: the daemon did not get it, or did not say so; it may go another way.
  using Done = std::function<void(PushItem item, const absl::StatusOr<PushOutcome>& outcome,
                                  bool not_taken)>;
  struct Page {
    PushItem item;
    Done done;
    std::shared_ptr<const std::atomic<bool>> cancelled;  // set: not begun any more
  };
  // Pages are named in the order of these calls. On error `page` stays as it was.
  virtual absl::Status Push(const PushConfig& config, Page& page) = 0;
  virtual absl::StatusOr<PushMemory> Reserve(int64_t bytes) = 0;
  virtual bool broken() const = 0;
  // Every page is answered when this returns. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace pagoda::client
