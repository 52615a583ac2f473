// The daemon's end of shared memory: tells clients of this machine where the pages of their leases
// lie, and hands out descriptors of that memory (proto/shm_protocol.h).
//
// Who      A connection names its session first; the id is known to nobody else. It gets a memfd
//          only after a page of one of its leases was found to lie there, so that no client maps
//          memory of a scope that it may not read. The memfds are sealed: storage/host_tier.h.
// Threads  one of its own for all connections, and one that accepts; answers about pages that load
//          come on the store's threads. Nothing blocks: a client that does not read what it is told
//          is cut off.
// Errors   of a request go to its client; whatever is no request ends the connection
// Limits   1024 connections, 8 of a session, 5 seconds until one is named; of a client 4 MiB of
//          answers and 4 descriptors that it has not read, 8 requests that wait for pages
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cache-server/service_context.h"

namespace pagoda {

class ShmServer {
 public:
  // Listens on a Unix socket at `path`, whose file gets `mode`.
  static absl::StatusOr<std::unique_ptr<ShmServer>> Start(const std::string& path, mode_t mode,
                                                          ServiceContext& context);
  virtual ~ShmServer() = default;  // Stop()
  // Nobody can connect any more; all connections are closed. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace pagoda
