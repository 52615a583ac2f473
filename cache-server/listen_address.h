// An address to listen on: HOST:PORT or unix:PATH.
//
// Errors  INVALID_ARGUMENT  not of that form
//         UNAVAILABLE       somebody listens there already, or the address is not ours; names the
//                           cause and the remedy
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda {

struct ListenAddress {
  std::string unix_path;  // set: a Unix socket, and the rest is unused
  std::string host;       // without brackets
  uint16_t port = 0;
  bool is_unix() const { return !unix_path.empty(); }
  // Reached from this machine only: a Unix socket, localhost, 127.x or ::1.
  bool is_local() const;
  std::string ToString() const;  // with brackets around an IPv6 host
};

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Tries to listen there and gives it back: so that "in use" is told apart from other causes. A
// Unix socket file that nobody listens on is stale and does not count.
absl::Status CheckCanListen(const ListenAddress& address);

}  // namespace pagoda
