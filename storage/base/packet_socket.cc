#include "storage/base/packet_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/clock.h"

namespace pagoda {
namespace {

constexpr size_t kDescriptorsMax = 4;  // that a peer may send along; more are cut off by the system

absl::Status SystemError(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat("socket: ", call, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<UniqueFd> ConnectPackets(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("socket: path '%s' of %d bytes, from 1 to %d fit", path, path.size(),
                        sizeof(address.sun_path) - 1));
  }
  path.copy(address.sun_path, path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SystemError("socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError(absl::StrCat("connect ", path));
  }
  return fd;
}

absl::Status TrySendPacket(int socket, absl::string_view bytes, int fd) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  while (true) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return absl::ResourceExhaustedError("socket: the peer does not read");
    return SystemError("sendmsg");
  }
}

absl::StatusOr<std::optional<Packet>> TryReceivePacket(int socket, size_t bytes_max) {
  // Most packets are far shorter than the longest: clearing one of that size would cost more than
  // the call.
  thread_local std::vector<char> buffer;
  if (buffer.size() < bytes_max) buffer.resize(bytes_max);
  Packet packet;
  iovec part{buffer.data(), bytes_max};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsMax)] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    if (errno == EAGAIN) return std::nullopt;
    if (errno == ECONNRESET) received = 0;
    if (received < 0) return SystemError("recvmsg");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (!packet.fd.valid()) packet.fd = std::move(owned);
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("socket: a packet of more than %d bytes", bytes_max));
  }
  packet.bytes.assign(buffer.data(), static_cast<size_t>(received));
  return packet;
}

absl::StatusOr<Packet> ReceivePacket(int socket, size_t bytes_max, absl::Duration timeout) {
  const absl::Duration end = SystemClock().Monotonic() + timeout;
  while (true) {
    absl::StatusOr<std::optional<Packet>> packet = TryReceivePacket(socket, bytes_max);
    if (!packet.ok()) return packet.status();
    if (packet->has_value()) return *std::move(*packet);
    const absl::Duration left = end - SystemClock().Monotonic();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("socket: no answer in time");
    }
    pollfd polled{socket, POLLIN, 0};
    const auto milliseconds = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
    if (::poll(&polled, 1, static_cast<int>(std::min<int64_t>(milliseconds, 1 << 30))) < 0 &&
        errno != EINTR) {
      return SystemError("poll");
    }
  }
}

}  // namespace pagoda
