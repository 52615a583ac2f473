// One kLocate of a client: tells it where the pages of its lease lie, once those that load are
// there.
//
// Threads    called by the server's thread; answers come from it, or on the store's threads
// Ownership  lives until it has answered; holds the connection, and pages only until then: the
//            lease keeps them where they are
// Errors     go to the client
#pragma once

#include <memory>

#include "cache-server/service_context.h"
#include "cache-server/shm_connection.h"

namespace pagoda {

void LocatePages(ServiceContext& context, std::shared_ptr<ShmConnection> connection,
                 const shm::Request& request);

}  // namespace pagoda
