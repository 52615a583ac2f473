#include "cache-server/shm_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cache-server/acceptor.h"
#include "cache-server/listen_address.h"
#include "cache-server/shm_connection.h"
#include "cache-server/shm_device.h"
#include "cache-server/shm_load.h"
#include "cache-server/shm_locate.h"
#include "cache-server/shm_push.h"
#include "proto/shm_protocol.h"
#include "storage/base/check.h"
#include "storage/base/packet_socket.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int kLocatingMax = 8;  // requests of one client that wait for pages
constexpr size_t kConnectionsMax = 1024;
constexpr int kPushThreads = 2;
constexpr absl::Duration kHelloWait = absl::Seconds(5);

class ShmServerImpl : public ShmServer {
 public:
  ShmServerImpl(std::string path, ServiceContext& context)
      : path_(std::move(path)),
        context_(context),
        staging_budget_(context.options.shm.staging_bytes),
        push_queue_(kPushThreads, /*queue_max=*/0),
        devices_(context) {}
  ~ShmServerImpl() override { Stop(); }

  absl::Status Open(mode_t mode) {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    if (!epoll_.valid() || !stop_.valid()) {
      return absl::ResourceExhaustedError("shm: no descriptors for epoll");
    }
    if (!Watch(stop_.get())) return absl::ResourceExhaustedError("shm: epoll_ctl");
    ListenAddress address;
    address.unix_path = path_;
    PAGODA_ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets, Listen(address, mode, SOCK_SEQPACKET));
    PAGODA_ASSIGN_OR_RETURN(
        acceptor_,
        Acceptor::Start(
            std::move(sockets), [this](int, UniqueFd fd) { Take(std::move(fd)); },
            [this](absl::string_view reason) { context_.metrics.OnConnectionRefused(reason); }));
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  void Stop() override {
    if (acceptor_ == nullptr) return;
    ::unlink(path_.c_str());
    acceptor_->Stop();
    const uint64_t one = 1;
    PAGODA_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
    push_queue_.Stop();
    devices_.Stop();
    pushes_.clear();
    acceptor_.reset();
    absl::MutexLock lock(&mutex_);
    for (const auto& [fd, connection] : connections_) connection->Cut();
    connections_.clear();
  }

 private:
  bool Watch(int fd) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  void Take(UniqueFd fd) ABSL_LOCKS_EXCLUDED(mutex_) {
    const int number = fd.get();
    absl::MutexLock lock(&mutex_);
    // Sessions bound those that have one; who never names one does not stay.
    if (connections_.size() >= kConnectionsMax) return;
    connections_.emplace(number, std::make_shared<ShmConnection>(std::move(fd), epoll_.get()));
    if (!Watch(number)) connections_.erase(number);
  }

  void CutSilentStrangers() ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::Duration now = SystemClock().Monotonic();
    absl::MutexLock lock(&mutex_);
    for (const auto& [fd, connection] : connections_) {
      if (!connection->session().has_value() && now - connection->since() > kHelloWait) {
        connection->Cut();
      }
    }
  }

  std::shared_ptr<ShmConnection> Find(int fd) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto found = connections_.find(fd);
    return found == connections_.end() ? nullptr : found->second;
  }

  void Forget(const std::shared_ptr<ShmConnection>& connection) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (connection->session().has_value()) {
      context_.sessions.RemoveStream(*connection->session(), connection.get());
    }
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->fd(), nullptr);
    connection->Cut();
    pushes_.erase(connection->fd());
    devices_.Forget(connection);
    // Its descriptor closes with the last answer that still names it, and no other connection has
    // that number before.
    absl::MutexLock lock(&mutex_);
    connections_.erase(connection->fd());
  }

  void Run() {
    std::vector<epoll_event> events(64);
    while (true) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                     /*timeout=*/1000);
      CutSilentStrangers();
      for (int i = 0; i < count; ++i) {
        if (events[i].data.fd == stop_.get()) return;
        const std::shared_ptr<ShmConnection> connection = Find(events[i].data.fd);
        if (connection == nullptr) continue;
        if ((events[i].events & EPOLLOUT) != 0) connection->OnWritable();
        if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0 && !Read(connection)) {
          Forget(connection);
        }
      }
    }
  }

  // False: the connection is over.
  bool Read(const std::shared_ptr<ShmConnection>& connection) {
    constexpr int kPacketsAtOnce = 2;  // then the others have their turn
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      absl::StatusOr<std::optional<Packet>> packet =
          TryReceivePacket(connection->fd(), shm::kPacketBytesMax);
      if (!packet.ok()) return false;
      if (!packet->has_value()) return true;
      if ((*packet)->bytes.empty() || !Handle(connection, std::move((*packet)->bytes)))
        return false;
    }
    return true;
  }

  bool Handle(const std::shared_ptr<ShmConnection>& connection, std::string bytes) {
    if (!connection->session().has_value()) {
      shm::Hello hello;
      if (bytes.size() != sizeof(hello)) return false;
      std::memcpy(&hello, bytes.data(), sizeof(hello));
      return hello.magic == shm::kMagic && Introduce(connection, SessionId{hello.session_id});
    }
    shm::Request request;
    if (bytes.size() < sizeof(request)) return false;
    std::memcpy(&request, bytes.data(), sizeof(request));
    if (request.op == shm::Op::kPush) {
      return pushes_.at(connection->fd())->Take(connection, std::move(bytes));
    }
    if (bytes.size() != sizeof(request)) return false;
    switch (request.op) {
      case shm::Op::kLocate:
        if (TooMany(*connection, request)) return true;
        LocatePages(context_, connection, request);
        return true;
      case shm::Op::kLoad:
        if (TooMany(*connection, request)) return true;
        LoadPages(context_, connection, request);
        return true;
      case shm::Op::kOpen:
        OpenMemory(*connection, request);
        return true;
      case shm::Op::kStage:
        pushes_.at(connection->fd())->Stage(*connection, request);
        return true;
      case shm::Op::kDevice:
      case shm::Op::kPlace:
        if (TooMany(*connection, request)) return true;
        devices_.Take(connection, pushes_.at(connection->fd())->caller(), request);
        return true;
      case shm::Op::kPush:
        break;
    }
    return false;
  }

  // A client that has given up on its earlier requests may still have them here.
  static bool TooMany(ShmConnection& connection, const shm::Request& request) {
    if (connection.locating().load(std::memory_order_relaxed) < kLocatingMax) return false;
    connection.SendStatus(request.op, request.tag,
                          absl::ResourceExhaustedError("too many requests wait for pages"));
    return true;
  }

  bool Introduce(const std::shared_ptr<ShmConnection>& connection, const SessionId& session) {
    connection->set_session(session);
    const absl::StatusOr<CallerPtr> caller = context_.sessions.AddSideStream(session, connection);
    if (!caller.ok()) return false;
    pushes_[connection->fd()] =
        std::make_shared<ShmPushes>(context_, staging_budget_, push_queue_, *caller);
    return true;
  }

  void OpenMemory(ShmConnection& connection, const shm::Request& request) const {
    absl::StatusOr<SharedChunk> chunk =
        connection.Allows(request.what)
            ? context_.store.ShareMemory(request.what)
            : absl::PermissionDeniedError("no leased page was found in that memory");
    if (!chunk.ok()) return connection.SendStatus(request.op, request.tag, chunk.status());
    connection.SendMemory(
        request.op, request.tag,
        {static_cast<uint64_t>(chunk->memfd_bytes), static_cast<uint64_t>(chunk->chunk_bytes)},
        std::move(chunk->fd));
  }

  const std::string path_;
  ServiceContext& context_;
  UniqueFd epoll_;
  UniqueFd stop_;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
  StagingBudget staging_budget_;
  WorkQueue push_queue_;
  ShmDevices devices_;
  // By descriptor, of connections that named their session. Of the server's thread.
  absl::flat_hash_map<int, std::shared_ptr<ShmPushes>> pushes_;

  absl::Mutex mutex_;
  absl::flat_hash_map<int, std::shared_ptr<ShmConnection>> connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShmServer>> ShmServer::Start(const std::string& path, mode_t mode,
                                                            ServiceContext& context) {
  auto server = std::make_unique<ShmServerImpl>(path, context);
  PAGODA_RETURN_IF_ERROR(server->Open(mode));
  return server;
}

}  // namespace pagoda
