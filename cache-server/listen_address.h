// An address to listen on: HOST:PORT or unix:PATH.
//
// Errors  INVALID_ARGUMENT  not of that form
//         UNAVAILABLE       somebody listens there already, or the address is not ours; names the
//                           cause and the remedy
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/base/unique_fd.h"

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

// Listens on every address the host resolves to, without blocking; the first choice of a port 0
// holds for all of them and is written to `address`. A Unix socket's file gets `unix_mode` before
// anyone can connect; a stale one, which nobody listens on, is replaced.
absl::StatusOr<std::vector<UniqueFd>> Listen(ListenAddress& address, mode_t unix_mode,
                                             int unix_type = SOCK_STREAM);

// Tries to listen there and gives it back: so that "in use" is told apart from other causes.
absl::Status CheckCanListen(ListenAddress address);

}  // namespace pagoda
