// The client's end of shared memory: one connection to the daemon of this machine, and the maps of
// its memory that this client has been given (proto/shm_protocol.h).
//
// Pages are copied out of the maps. A page counts only if none of its slabs was given back before
// its last byte was read, which the generations beside the slabs tell; the daemon verified the
// bytes when it took them, so that they are not summed up again.
//
// Threads    every method from any thread; one request is under way at a time, and who would wait
//            for it longer than a moment is told UNAVAILABLE; copies run side by side
// Ownership  maps are read-only and live as long as somebody copies out of them
// Errors     UNAVAILABLE, DEADLINE_EXCEEDED   the daemon is away or slow, or the channel is busy:
// go
//                                             on over gRPC; broken() says whether for good
//            others come from the daemon, or name what it sent that cannot be
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace pagoda::client {

class ShmChannel {
 public:
  // `session_id` is that of the open session with the same daemon.
  static absl::StatusOr<std::shared_ptr<ShmChannel>> Connect(const std::string& path,
                                                             const std::string& session_id);
  virtual ~ShmChannel() = default;

  // Pages [page_begin, page_begin + keys.size()) of the lease, as they are stored, until one is
  // more exact than `most` (kNone: any). Waits for those that load until the timeout.
  virtual FetchResult Fetch(const LeaseId& lease, uint32_t page_begin,
                            absl::Span<const PageKey> keys, const Identity& identity,
                            Precision most, absl::Duration timeout) = 0;
  // Gives back maps that nobody used for a while; now and then.
  virtual void DropIdleMaps() = 0;
  virtual bool broken() const = 0;
};

}  // namespace pagoda::client
