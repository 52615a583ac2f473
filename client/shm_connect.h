// A connection to the daemon's socket for shared memory, which names the session it is for.
//
// Errors  UNAVAILABLE       nobody listens there
//         INVALID_ARGUMENT  no session has such an id
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace pagoda::client {

absl::StatusOr<UniqueFd> ConnectShm(const std::string& path, const std::string& session_id);

}  // namespace pagoda::client
