// A whole daemon in one object: what main.cc runs, and what tests and benches start in-process.
//
//   auto server = Server::Start(options);   ... (*server)->address() ...   server->Shutdown(30 s)
//
// Threads    any; Shutdown() blocks and is idempotent
// Errors     INVALID_ARGUMENT     an option
//            FAILED_PRECONDITION  secret, token or key file; a data folder that another daemon
//            uses, or
//                                 another version wrote
//            UNAVAILABLE          address in use, folder not writable
//            Each message is one line: cause, value, remedy.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache-server/options.h"
#include "storage/base/clock.h"

namespace pagoda {

class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const Clock& clock = SystemClock());
  // Shuts down within 5 seconds, unless Shutdown() was called.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // What a client dials: HOST:PORT with the real port, or unix:PATH.
  const std::string& address() const;
  int port() const;                            // 0 for a Unix socket
  const std::string& metrics_address() const;  // HOST:PORT, or "none"

  // The metrics as a scrape would see them.
  std::string MetricsText() const;
  // Sweeps once: silent sessions end, expired leases go, left-out pages are considered. Also done
  // by a thread; tests with a clock of their own call it.
  void Sweep();
  // Waits until the background encoder has nothing to do.
  bool AwaitEncoded(absl::Duration timeout);

  // Drains, ends sessions, persists what is in host memory, closes. OK even when the deadline cut
  // something short: what was lost is logged.
  absl::Status Shutdown(absl::Duration deadline);

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace pagoda
