// One kLoad of a client: pages of its lease that come up from SSD, told where they will lie once
// their headers are read, and then layer by layer as their bytes are there.
//
// Threads    called by the server's thread; answers come on the store's threads
// Ownership  lives until the last page has ended; holds the pages until then, the lease after
// Errors     go to the client
#pragma once

#include <memory>

#include "cache-server/service_context.h"
#include "cache-server/shm_connection.h"

namespace pagoda {

void LoadPages(ServiceContext& context, std::shared_ptr<ShmConnection> connection,
               const shm::Request& request);

}  // namespace pagoda
