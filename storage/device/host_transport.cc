#include "storage/device/host_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int64_t kHeaderBytes = sizeof(uint64_t);
constexpr int kSocketType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

absl::Status SystemError(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat("host transport: ", call, ": ", std::strerror(errno)));
}

socklen_t AddressOf(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  PAGODA_CHECK(name.size() + 1 <= sizeof(address.sun_path));
  name.copy(address.sun_path + 1, name.size());  // behind a zero: no file
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

absl::StatusOr<PeerLinkId> HostTransport::NewId() {
  PeerLinkId id;
  if (getrandom(id.bytes.data(), id.bytes.size(), 0) != static_cast<ssize_t>(id.bytes.size())) {
    return SystemError("getrandom");
  }
  return id;
}

absl::Status HostTransport::Join(const PeerLinkId& id, int rank) {
  PAGODA_CHECK(task_ == Task::kNone && !socket_.valid());
  name_ = absl::StrCat("pagoda-link-", absl::BytesToHexString(absl::string_view(
                                           reinterpret_cast<const char*>(id.bytes.data()), 16)));
  UniqueFd socket(::socket(AF_UNIX, kSocketType, 0));
  if (!socket.valid()) return SystemError("socket");
  if (rank == 1) {
    socket_ = std::move(socket);
    task_ = Task::kConnect;
    return absl::OkStatus();
  }
  sockaddr_un address;
  const socklen_t size = AddressOf(name_, address);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return SystemError("bind");
  }
  if (listen(socket.get(), 1) != 0) return SystemError("listen");
  listener_ = std::move(socket);
  task_ = Task::kAccept;
  return absl::OkStatus();
}

absl::StatusOr<bool> HostTransport::Poll() {
  absl::StatusOr<bool> done = true;
  switch (task_) {
    case Task::kNone:
      if (socket_.valid()) PAGODA_RETURN_IF_ERROR(CheckPeer());
      return true;
    case Task::kAccept:
      done = Accept();
      break;
    case Task::kConnect:
      done = Connect();
      break;
    case Task::kSend:
    case Task::kReceive:
      done = Move();
      break;
  }
  if (done.ok() && *done) task_ = Task::kNone;
  return done;
}

// Between transfers the peer sends nothing: what there is to read then is its end. What it has sent
// already for the next one is left.
absl::Status HostTransport::CheckPeer() const {
  char byte;
  const ssize_t got = recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return absl::UnavailableError("host transport: the peer has gone");
  if (got < 0 && errno != EAGAIN && errno != EINTR) return SystemError("recv");
  return absl::OkStatus();
}

absl::StatusOr<bool> HostTransport::Accept() {
  socket_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket_.valid()) {
    listener_ = UniqueFd();
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) return false;
  return SystemError("accept");
}

absl::StatusOr<bool> HostTransport::Connect() {
  sockaddr_un address;
  const socklen_t size = AddressOf(name_, address);
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0) return true;
  // Rank 0 has not come yet.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return false;
  return SystemError("connect");
}

absl::Status HostTransport::Send(const std::byte* source, int64_t bytes, DeviceStream& stream) {
  return Begin(Task::kSend, const_cast<std::byte*>(source), bytes, stream);
}

absl::Status HostTransport::Receive(std::byte* target, int64_t bytes, DeviceStream& stream) {
  return Begin(Task::kReceive, target, bytes, stream);
}

absl::Status HostTransport::Begin(Task task, std::byte* data, int64_t bytes, DeviceStream& stream) {
  PAGODA_CHECK(task_ == Task::kNone && socket_.valid());
  if (before_ == nullptr) {
    PAGODA_ASSIGN_OR_RETURN(before_, runtime_.NewEvent());
  }
  PAGODA_RETURN_IF_ERROR(stream.Record(*before_));
  task_ = task;
  data_ = data;
  bytes_ = bytes;
  header_ = static_cast<uint64_t>(bytes);
  header_done_ = 0;
  done_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> HostTransport::Move() {
  PAGODA_ASSIGN_OR_RETURN(const bool begun, before_->Done());
  if (!begun) return false;
  const bool sends = task_ == Task::kSend;
  while (done_ < bytes_) {
    const bool in_header = header_done_ < kHeaderBytes;
    std::byte* at =
        in_header ? reinterpret_cast<std::byte*>(&header_) + header_done_ : data_ + done_;
    const auto left = static_cast<size_t>(in_header ? kHeaderBytes - header_done_ : bytes_ - done_);
    const ssize_t moved = sends ? send(socket_.get(), at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                : recv(socket_.get(), at, left, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (sends) PAGODA_RETURN_IF_ERROR(CheckPeer());
      return false;
    }
    if (moved < 0) return SystemError(sends ? "send" : "recv");
    if (moved == 0) return absl::UnavailableError("host transport: the peer has gone");
    (in_header ? header_done_ : done_) += moved;
    if (!sends && header_done_ == kHeaderBytes && header_ != static_cast<uint64_t>(bytes_)) {
      return absl::DataLossError(absl::StrFormat(
          "host transport: the peer sends %d bytes, %d are expected", header_, bytes_));
    }
  }
  return true;
}

void HostTransport::Abort() {
  listener_ = UniqueFd();
  socket_ = UniqueFd();
  task_ = Task::kNone;
}

}  // namespace pagoda
