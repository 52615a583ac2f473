// Whether the process at the other end of a Unix socket is alive. Its socket's end alone does not
// say: a process can close one and go on, and while it dies its socket may end before its GPU work
// does. A pidfd says it last, when all files of the process are closed, the driver's too.
//
// Threads  one at a time
#pragma once

#include "storage/base/unique_fd.h"

namespace pagoda {

class PeerProcess {
 public:
  // Of a connected Unix socket, which stays the caller's and must outlive this.
  explicit PeerProcess(int socket);

  enum class State { kAlive, kGone, kEnded };
  // kGone: the connection has ended, and nobody can say whether its process has (another PID
  // namespace on a kernel before 6.5). kEnded: the process has.
  State Look() const;

 private:
  const int socket_;
  UniqueFd pidfd_;
};

}  // namespace pagoda
