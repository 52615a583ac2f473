// The client's end of fetching through shared memory: one connection to the daemon of this machine,
// and the maps of its memory that this client has been given (proto/shm_protocol.h).
//
// Threads    every method from any thread; one request is under way at a time, and who would wait
//            for it longer than a moment is told UNAVAILABLE
// Ownership  maps are read-only and live as long as somebody reads them
// Errors     UNAVAILABLE, DEADLINE_EXCEEDED   the daemon is away or slow, or the channel is busy:
//                                             go on over gRPC; broken() says whether for good
//            others come from the daemon, or name what it sent that cannot be
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/shm_pages.h"

namespace pagoda::client {

// Pages on their way from SSD into the daemon's memory. One thread at a time.
class ShmLoad {
 public:
  virtual ~ShmLoad() = default;
  // Those whose headers are there, in order; fewer than asked: the others do not come.
  virtual const std::shared_ptr<const ShmPages>& pages() const = 0;
  // Until the first `page_count` of them have this layer and those before it.
  virtual absl::Status WaitLayer(uint32_t layer, size_t page_count, absl::Duration timeout) = 0;
  // Until the last one has ended: how many of the leading ones came.
  virtual absl::StatusOr<size_t> WaitAll() = 0;
};

class ShmChannel {
 public:
  // `session_id` is that of the open session with the same daemon.
  static absl::StatusOr<std::shared_ptr<ShmChannel>> Connect(const std::string& path,
                                                             const std::string& session_id);
  virtual ~ShmChannel() = default;

  struct Wanted {
    LeaseId lease;
    absl::Duration lease_until;  // on the monotonic clock
    uint32_t page_begin = 0;     // into the lease's pages
    absl::Span<const RecordKey> records;
    Identity identity;
    absl::Duration timeout;
  };
  // Where those pages lie, as they are stored. Waits for those that load until the timeout.
  virtual absl::StatusOr<std::unique_ptr<ShmPages>> Locate(const Wanted& wanted) = 0;
  // The same, without waiting for the bytes of those that load: returns once all headers are
  // there. The channel is the load's until its end.
  virtual absl::StatusOr<std::unique_ptr<ShmLoad>> Load(const Wanted& wanted) = 0;
  // Gives back maps that nobody used for a while; now and then.
  virtual void DropIdleMaps() = 0;
  virtual bool broken() const = 0;
};

}  // namespace pagoda::client
