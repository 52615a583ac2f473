// How a client secures its connections over TCP. Unix sockets stay as they are, whatever this says.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace pagoda::client {

// Paths of PEM files; they are read again when they change, for connections made after that.
struct TlsOptions {
  std::string ca;           // authorities of the daemon's certificate; empty: no TLS
  std::string certificate;  // this client's own, for daemons that ask for one; empty: none
  std::string key;          // its key, mode 0600, or 0640 where a group hands out secrets
  std::string server_name;  // the daemon's name in its certificate, where the target's is another
  // True: a token may go to another machine in plain text.
  bool insecure = false;
  bool enabled() const { return !ca.empty(); }

  // Looks at the files: proto/tls_files.h has the errors.
  absl::Status Validate() const;
};

// What has to be right before anything is sent to that target: the files, and that a token does not
// go to another machine in plain text. INVALID_ARGUMENT, or as proto/tls_files.h.
absl::Status CheckSecurity(const TlsOptions& tls, const std::string& target,
                           const std::string& token);

}  // namespace pagoda::client
