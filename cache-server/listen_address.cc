#include "cache-server/listen_address.h"

#include <netdb.h>
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

namespace pagoda {
namespace {

constexpr absl::string_view kUnixPrefix = "unix:";

absl::Status NotAnAddress(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not an address; write HOST:PORT, as in 127.0.0.1:7070, or unix:/PATH"));
}

absl::Status CheckUnix(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::UnavailableError(
        absl::StrCat("unix:", path, " exists and is not a socket; choose another path"));
  }
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const auto close_fd = absl::MakeCleanup([fd] { ::close(fd); });
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return absl::UnavailableError(
        absl::StrCat("unix:", path, " is in use; stop the other daemon or choose another path"));
  }
  return absl::OkStatus();
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

absl::Status CheckCanListen(const ListenAddress& address) {
  if (address.is_unix()) return CheckUnix(address.unix_path);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve host ", address.host, ": ",
                                               ::gai_strerror(error),
                                               "; use an address of this machine"));
  }
  const auto free_found = absl::MakeCleanup([found] { ::freeaddrinfo(found); });
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const auto close_fd = absl::MakeCleanup([fd] { ::close(fd); });
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, 1) == 0) {
    return absl::OkStatus();
  }
  if (errno == EADDRINUSE) {
    return absl::UnavailableError(absl::StrCat(
        address.ToString(), " is in use; stop the other process or choose another port"));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address.ToString(), ": ", std::strerror(errno)));
}

}  // namespace pagoda
