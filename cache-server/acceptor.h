// Accepts connections for a gRPC server. gRPC's own listener gives up for good when accept() fails
// once; this one waits until there are descriptors and memory again, and says so.
//
// Threads  one of its own, asleep in poll(); both callbacks run on it. Stop() by one thread.
// Errors   RESOURCE_EXHAUSTED  no descriptor for itself
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/base/unique_fd.h"

namespace pagoda {

class Acceptor {
 public:
  // Takes over a connection; it does not block. SOCK_NONBLOCK and SOCK_CLOEXEC are set.
  using Take = absl::AnyInvocable<void(int listen_fd, UniqueFd connection)>;
  // A connection could not be accepted: "descriptors", "memory" or "other".
  using Refused = absl::AnyInvocable<void(absl::string_view reason)>;

  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(std::vector<UniqueFd> sockets, Take take,
                                                         Refused refused);
  ~Acceptor();  // Stop()

  // After it, nothing is taken any more and nobody can connect. A second call does nothing.
  void Stop();

 private:
  Acceptor(std::vector<UniqueFd> sockets, UniqueFd stop, Take take, Refused refused);
  void Run();
  void AcceptAll(int listen_fd);
  void Recovered();

  std::vector<UniqueFd> sockets_;
  const UniqueFd stop_;  // an eventfd
  Take take_;
  Refused refused_;
  std::thread thread_;
  int64_t refusals_ = 0;  // since connections were last accepted
};

}  // namespace pagoda
