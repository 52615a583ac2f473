#include "cache-server/listen_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr absl::string_view kUnixPrefix = "unix:";

absl::Status NotAnAddress(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not an address; write HOST:PORT, as in 127.0.0.1:7070, or unix:/PATH"));
}

absl::Status NotListening(const ListenAddress& address, int error) {
  if (error == EADDRINUSE) {
    return absl::UnavailableError(absl::StrCat(
        address.ToString(), " is in use; stop the other process or choose another address"));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address.ToString(), ": ", std::strerror(error)));
}

absl::StatusOr<UniqueFd> UnixSocket(const ListenAddress& address, int type) {
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return NotListening(address, errno);
  return fd;
}

// Whether a daemon answers on this path; a socket file that nobody listens on goes.
absl::Status ClearUnixPath(const ListenAddress& address, const sockaddr_un& path, int type) {
  struct stat info {};
  if (::lstat(path.sun_path, &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), " exists and is not a socket; choose another path"));
  }
  PAGODA_ASSIGN_OR_RETURN(const UniqueFd fd, UnixSocket(address, type));
  // Refused: nobody listens. A full backlog or a socket of another user is somebody's.
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&path), sizeof(path)) == 0 ||
      errno != ECONNREFUSED) {
    return absl::UnavailableError(absl::StrCat(
        address.ToString(), " is in use; stop the other daemon or choose another path"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ListenUnix(const ListenAddress& address, mode_t mode, int type) {
  sockaddr_un path{};
  if (address.unix_path.size() >= sizeof(path.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(address.ToString(), " is a path of ",
                                                   address.unix_path.size(), " bytes, at most ",
                                                   sizeof(path.sun_path) - 1, " fit"));
  }
  path.sun_family = AF_UNIX;
  address.unix_path.copy(path.sun_path, sizeof(path.sun_path) - 1);
  PAGODA_RETURN_IF_ERROR(ClearUnixPath(address, path, type));
  ::unlink(path.sun_path);
  PAGODA_ASSIGN_OR_RETURN(UniqueFd fd, UnixSocket(address, type));
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&path), sizeof(path)) != 0 ||
      ::chmod(path.sun_path, mode) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    return NotListening(address, errno);
  }
  return fd;
}

void SetPort(sockaddr* where, uint16_t port) {
  if (where->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(where)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(where)->sin_port = htons(port);
  }
}

uint16_t PortOf(const UniqueFd& fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

// 0, or errno.
int ListenTcp(const addrinfo& where, UniqueFd& fd) {
  fd = UniqueFd(::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Accepted sockets inherit these. Without the timeout a machine that vanished while pages were
  // sent to it would be noticed after a quarter of an hour.
  const unsigned timeout_ms = 5000;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
  if (where.ai_family == AF_INET6) {  // [::] serves IPv4 as well
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (::bind(fd.get(), where.ai_addr, where.ai_addrlen) != 0) return errno;
  return ::listen(fd.get(), SOMAXCONN) == 0 ? 0 : errno;
}

bool SameAddress(const addrinfo& a, const addrinfo& b) {
  return a.ai_addrlen == b.ai_addrlen && std::memcmp(a.ai_addr, b.ai_addr, a.ai_addrlen) == 0;
}

}  // namespace

bool ListenAddress::is_local() const {
  return is_unix() || host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

std::string ListenAddress::ToString() const {
  if (is_unix()) return absl::StrCat(kUnixPrefix, unix_path);
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  ListenAddress address;
  if (absl::StartsWith(text, kUnixPrefix)) {
    address.unix_path = std::string(text.substr(kUnixPrefix.size()));
    const size_t longest = sizeof(sockaddr_un{}.sun_path) - 1;
    if (address.unix_path.empty()) return NotAnAddress(text);
    if (address.unix_path.size() > longest) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' has a path of ", address.unix_path.size(),
                       " characters, a socket's has at most ", longest, "; choose a shorter one"));
    }
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return NotAnAddress(text);
  absl::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return NotAnAddress(text);
  }
  uint32_t port = 0;
  if (host.empty() || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return NotAnAddress(text);
  }
  address.host = std::string(host);
  address.port = static_cast<uint16_t>(port);
  return address;
}

absl::StatusOr<std::vector<UniqueFd>> Listen(ListenAddress& address, mode_t unix_mode,
                                             int unix_type) {
  std::vector<UniqueFd> sockets;
  if (address.is_unix()) {
    PAGODA_ASSIGN_OR_RETURN(UniqueFd fd, ListenUnix(address, unix_mode, unix_type));
    sockets.push_back(std::move(fd));
    return sockets;
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(address.host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve host ", address.host, ": ",
                                               ::gai_strerror(error),
                                               "; use an address of this machine"));
  }
  const auto free_found = absl::MakeCleanup([found] { ::freeaddrinfo(found); });
  int error = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    // A hosts file may lead to one address by two lines.
    bool again = false;
    for (const addrinfo* other = found; other != one; other = other->ai_next) {
      SetPort(other->ai_addr, 0);
      again = again || SameAddress(*other, *one);
    }
    if (again) continue;
    SetPort(one->ai_addr, address.port);
    UniqueFd fd;
    error = ListenTcp(*one, fd);
    if (error == EADDRINUSE) return NotListening(address, error);
    if (error != 0) continue;  // localhost may be ::1 where there is no IPv6: one is enough
    address.port = PortOf(fd);
    sockets.push_back(std::move(fd));
  }
  if (sockets.empty()) return NotListening(address, error);
  return sockets;
}

absl::Status CheckCanListen(ListenAddress address) {
  const absl::StatusOr<std::vector<UniqueFd>> sockets = Listen(address, 0600);
  if (address.is_unix() && sockets.ok()) ::unlink(address.unix_path.c_str());
  return sockets.status();
}

}  // namespace pagoda
