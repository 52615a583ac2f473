#include "storage/device/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pagoda {
namespace {

constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD, of Linux 6.5; older headers lack it

bool IsReadable(int fd, short events) {
  pollfd polled{fd, events, 0};
  return poll(&polled, 1, /*timeout=*/0) == 1 &&
         (polled.revents & (events | POLLHUP | POLLERR)) != 0;
}

}  // namespace

PeerProcess::PeerProcess(int socket) : socket_(socket) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &size) == 0) {
    pidfd_ = UniqueFd(fd);
    return;
  }
  ucred credentials{};
  size = sizeof(credentials);
  // A pid of 0 is one of a namespace that we do not see. A number that was given to somebody else
  // in the meantime would keep memory, never free it.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
      credentials.pid > 0) {
    pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));
  }
}

PeerProcess::State PeerProcess::Look() const {
  if (pidfd_.valid()) return IsReadable(pidfd_.get(), POLLIN) ? State::kEnded : State::kAlive;
  return IsReadable(socket_, POLLRDHUP) ? State::kGone : State::kAlive;
}

}  // namespace pagoda
