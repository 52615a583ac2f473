// Why gRPC does not get through to a daemon whose port is open: gRPC says "Socket closed" for most
// of what can be wrong with TLS. Tries one connection of its own and looks at how it ends.
//
// Threads  any; blocks      Cost  one connection, at most `timeout` beside the name's resolution
#pragma once

#include <string>

#include "absl/time/time.h"
#include "client/tls_options.h"

namespace pagoda::client {

// One sentence with cause and remedy; empty where TLS is not the cause, or the target is a Unix
// socket.
std::string ConnectAdvice(const std::string& target, const TlsOptions& tls, absl::Duration timeout);
// `status` of a call, where it is UNAVAILABLE with that sentence instead of its own.
absl::Status WithConnectAdvice(absl::Status status, const std::string& target,
                               const TlsOptions& tls, absl::Duration timeout);

}  // namespace pagoda::client
