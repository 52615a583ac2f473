#include "cache-server/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/log.h"

namespace pagoda {
namespace {

constexpr int kRetryMilliseconds = 50;
constexpr int kAcceptsAtOnce = 64;

// Of accept(2): those that say something about one connection, not about us.
bool IsAboutOneConnection(int error) {
  switch (error) {
    case ECONNABORTED:
    case EINTR:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
      return true;
    default:
      return false;
  }
}

absl::string_view ReasonOf(int error) {
  if (error == EMFILE || error == ENFILE) return "descriptors";
  if (error == ENOMEM || error == ENOBUFS) return "memory";
  return "other";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(std::vector<UniqueFd> sockets, Take take,
                                                          Refused refused) {
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make an eventfd: ", std::strerror(errno)));
  }
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(std::move(sockets), std::move(stop), std::move(take), std::move(refused)));
  acceptor->thread_ = std::thread([raw = acceptor.get()] { raw->Run(); });
  return acceptor;
}

Acceptor::Acceptor(std::vector<UniqueFd> sockets, UniqueFd stop, Take take, Refused refused)
    : sockets_(std::move(sockets)),
      stop_(std::move(stop)),
      take_(std::move(take)),
      refused_(std::move(refused)) {}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  PAGODA_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  sockets_.clear();
}

void Acceptor::Run() {
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
  for (const UniqueFd& socket : sockets_) polled.push_back({socket.get(), POLLIN, 0});
  while (true) {
    // While accept() fails its socket stays readable: only the pause keeps this from spinning.
    if (refusals_ > 0 && ::poll(polled.data(), 1, kRetryMilliseconds) > 0) return;
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;  // EINTR, ENOMEM
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) AcceptAll(polled[i].fd);
    }
  }
}

void Acceptor::AcceptAll(int listen_fd) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {  // then the stop is looked for
    UniqueFd connection(::accept4(listen_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.valid()) {
      Recovered();
      take_(listen_fd, std::move(connection));
      continue;
    }
    const int error = errno;
    if (error == EAGAIN) return Recovered();
    if (IsAboutOneConnection(error)) continue;
    refused_(ReasonOf(error));
    if (++refusals_ == 1) {
      LogWarning("connections_not_accepted",
                 {{"cause", std::strerror(error)}, {"reason", std::string(ReasonOf(error))}});
    }
    return;
  }
}

void Acceptor::Recovered() {
  if (refusals_ == 0) return;
  LogInfo("connections_accepted_again", {{"attempts", absl::StrCat(refusals_)}});
  refusals_ = 0;
}

}  // namespace pagoda
