// One kLocate of a client: tells it where the pages of its lease lie, once those that load are
// there.
//
// Threads    called by the server's thread; answers come from it, or on the store's threads
// Ownership  lives until it has answered; holds the connection, and pages only until then: the
//            lease keeps them where they are
// Errors     go to the client
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cache-server/service_context.h"
#include "cache-server/shm_connection.h"

namespace pagoda {

// Which pages a request of this client names.
struct LocateTarget {
  LeaseId lease = 0;
  std::vector<RecordKey> keys;
};
absl::StatusOr<LocateTarget> ParseLocate(ServiceContext& context, const ShmConnection& connection,
                                         const shm::Request& request);

// Packets of places, as far as they fit one answer; the last one ends it with `end`, if that is not
// null. Returns of how many pages.
size_t SendPlaces(ServiceContext& context, ShmConnection& connection, shm::Op op, uint32_t tag,
                  const std::vector<HostPagePtr>& pages, const absl::Status* end);

void LocatePages(ServiceContext& context, std::shared_ptr<ShmConnection> connection,
                 const shm::Request& request);

}  // namespace pagoda
