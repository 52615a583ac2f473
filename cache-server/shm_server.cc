#include "cache-server/shm_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache-server/acceptor.h"
#include "cache-server/lease_token.h"
#include "cache-server/listen_address.h"
#include "pagoda/v1/cache.pb.h"
#include "proto/shm_protocol.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/packet_socket.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kQueueBytesMax = size_t{4} << 20;
constexpr size_t kQueuedFdsMax = 4;  // an honest client asks for one at a time
constexpr int kLocatingMax = 8;      // requests of one client that wait for pages
constexpr size_t kConnectionsMax = 1024;
constexpr absl::Duration kHelloWait = absl::Seconds(5);
constexpr size_t kMemfdsMax = 65536;  // that one connection may have been told of

template <typename T>
void Append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// One client. Answers may come from any thread.
class Connection : public SessionStream {
 public:
  Connection(UniqueFd fd, int epoll) : fd_(std::move(fd)), epoll_(epoll) {}

  int fd() const { return fd_.get(); }
  const std::optional<SessionId>& session() const { return session_; }
  void set_session(const SessionId& id) { session_ = id; }

  void OnSessionEnd(SessionEndReason) override { Cut(); }

  void Send(std::string bytes, UniqueFd along = UniqueFd()) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (cut_) return;
    queued_bytes_ += bytes.size();
    if (along.valid()) ++queued_fds_;
    queue_.push_back({std::move(bytes), std::move(along)});
    if (queued_bytes_ > kQueueBytesMax || queued_fds_ > kQueuedFdsMax) return CutLocked();
    if (!watching_) Write();
  }
  // The socket has room again.
  void OnWritable() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Write();
  }
  // The thread that reads sees the end, and forgets this.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    CutLocked();
  }

  absl::Duration since() const { return since_; }
  // Requests that wait for pages; relaxed: a bound, nothing hangs on its order.
  std::atomic<int>& locating() { return locating_; }

  // Memory that the client was told of, and may ask for.
  void Allow(const std::vector<SlabLocation>& locations) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (allowed_.size() > kMemfdsMax) allowed_.clear();  // it looks up again
    for (const SlabLocation& location : locations) allowed_.insert(location.memfd_id);
  }
  bool Allows(uint64_t memfd_id) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return allowed_.contains(memfd_id);
  }

 private:
  struct Outgoing {
    std::string bytes;
    UniqueFd along;
  };

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!queue_.empty() && !cut_) {
      const Outgoing& next = queue_.front();
      const absl::Status status = TrySendPacket(fd_.get(), next.bytes, next.along.get());
      if (status.code() == absl::StatusCode::kResourceExhausted) return Watch(true);
      if (!status.ok()) return CutLocked();
      queued_bytes_ -= next.bytes.size();
      if (next.along.valid()) --queued_fds_;
      queue_.pop_front();
    }
    Watch(false);
  }
  void Watch(bool writable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (watching_ == writable) return;
    watching_ = writable;
    epoll_event event{};
    event.events = EPOLLIN | (writable ? EPOLLOUT : 0u);
    event.data.fd = fd_.get();
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_.get(), &event);
  }
  void CutLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    cut_ = true;
    queue_.clear();
    queued_bytes_ = 0;
    queued_fds_ = 0;
    ::shutdown(fd_.get(), SHUT_RDWR);
  }

  const UniqueFd fd_;
  const int epoll_;
  const absl::Duration since_ = SystemClock().Monotonic();
  std::atomic<int> locating_{0};
  std::optional<SessionId> session_;  // of the server's thread

  mutable absl::Mutex mutex_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t queued_fds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;  // for room in the socket
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<uint64_t> allowed_ ABSL_GUARDED_BY(mutex_);
};

// One kLocate: gathers the pages, some of which may have to load, and answers once.
class Locating : public std::enable_shared_from_this<Locating> {
 public:
  Locating(ServiceContext& context, std::shared_ptr<Connection> connection, uint32_t tag)
      : context_(context), connection_(std::move(connection)), tag_(tag) {
    connection_->locating().fetch_add(1, std::memory_order_relaxed);
  }
  ~Locating() { connection_->locating().fetch_sub(1, std::memory_order_relaxed); }
  Locating(const Locating&) = delete;
  Locating& operator=(const Locating&) = delete;

  void Run(const shm::Request& request) {
    const absl::Status status = Gather(request);
    if (!status.ok()) Answer({}, status);
  }

 private:
  absl::Status Gather(const shm::Request& request) {
    const absl::string_view lease_bytes(reinterpret_cast<const char*>(request.lease_id.data()),
                                        request.lease_id.size());
    const std::optional<LeaseToken> token = LeaseToken::Decode(lease_bytes);
    if (!token.has_value() || token->instance != context_.instance_tag) {
      return absl::NotFoundError("the lease is unknown; look up again");
    }
    const absl::string_view session = connection_->session()->view();
    PAGODA_ASSIGN_OR_RETURN(const std::vector<RecordKey> keys,
                            context_.store.LeasedKeys(session, token->lease));
    if (request.page_count == 0 || request.page_count > shm::kPagesMax ||
        request.page_begin >= keys.size() ||
        request.page_count > keys.size() - request.page_begin) {
      return absl::InvalidArgumentError(absl::StrFormat("pages: %d+%d asked, the lease has %d",
                                                        request.page_begin, request.page_count,
                                                        keys.size()));
    }
    {
      absl::MutexLock lock(&mutex_);
      pages_.assign(request.page_count, HostPagePtr());
      pending_ = request.page_count + 1;  // one more for this loop
    }
    for (size_t i = 0; i < request.page_count; ++i) {
      const RecordKey& key = keys[request.page_begin + i];
      absl::StatusOr<HostPagePtr> page = context_.store.GetLeased(session, token->lease, key);
      if (!page.ok() || *page != nullptr) {
        Have(i, std::move(page));
        continue;
      }
      context_.store.LoadLeased(
          session, token->lease, key,
          [self = shared_from_this(), id = token->lease, key,
           i](absl::StatusOr<HostPagePtr> loaded) { self->Loaded(i, id, key, std::move(loaded)); });
    }
    Have(request.page_count, HostPagePtr());
    return absl::OkStatus();
  }

  // The lease holds what GetLeased gives, and nothing else.
  void Loaded(size_t index, LeaseId lease, const RecordKey& key,
              absl::StatusOr<HostPagePtr> loaded) {
    if (!loaded.ok()) return Have(index, std::move(loaded));
    context_.encoder.Consider({key, (*loaded)->header().scope});
    absl::StatusOr<HostPagePtr> held =
        context_.store.GetLeased(connection_->session()->view(), lease, key);
    if (held.ok() && *held == nullptr) held = absl::UnavailableError("the page went again");
    Have(index, std::move(held));
  }

  // page_count itself is the asking loop.
  void Have(size_t index, absl::StatusOr<HostPagePtr> page) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<absl::StatusOr<HostPagePtr>> pages;
    {
      absl::MutexLock lock(&mutex_);
      if (index < pages_.size()) pages_[index] = std::move(page);
      if (--pending_ > 0) return;
      pages = std::move(pages_);
    }
    std::vector<HostPagePtr> good;
    for (absl::StatusOr<HostPagePtr>& each : pages) {
      if (!each.ok()) return Answer(good, each.status());
      good.push_back(*std::move(each));
    }
    Answer(good, absl::OkStatus());
  }

  // The pages as far as they are there, and why not further. They stay where they are: the lease
  // holds them.
  void Answer(const std::vector<HostPagePtr>& pages, const absl::Status& status) {
    std::string body;
    uint32_t count = 0;
    int64_t page_bytes = 0;
    std::vector<SlabLocation> locations;
    const auto flush = [&](bool last) {
      shm::Reply reply;
      reply.op = shm::Op::kLocate;
      reply.tag = tag_;
      reply.code = last ? static_cast<int32_t>(status.code()) : 0;
      reply.pages = count;
      reply.last = last ? 1 : 0;
      std::string packet;
      Append(packet, reply);
      packet += body;
      if (last) absl::StrAppend(&packet, status.message().substr(0, 4096));
      connection_->Send(std::move(packet));
      body.clear();
      count = 0;
    };
    for (const HostPagePtr& page : pages) {
      locations.clear();
      page->AppendLocations(locations);
      connection_->Allow(locations);
      page_bytes += page->bytes();
      const size_t bytes = sizeof(shm::Page) + locations.size() * sizeof(shm::Slab);
      if (sizeof(shm::Reply) + body.size() + bytes > shm::kPacketBytesMax) flush(false);
      Append(body, shm::Page{static_cast<uint32_t>(locations.size()),
                             static_cast<uint32_t>(v1::TIER_HOST)});
      for (const SlabLocation& at : locations) {
        Append(body, shm::Slab{at.memfd_id, static_cast<uint64_t>(at.offset), at.generation});
      }
      ++count;
    }
    if (sizeof(shm::Reply) + body.size() + 4096 > shm::kPacketBytesMax) flush(false);
    flush(true);
    context_.metrics.OnShmLocated(page_bytes);
  }

  ServiceContext& context_;
  const std::shared_ptr<Connection> connection_;
  const uint32_t tag_;

  absl::Mutex mutex_;
  std::vector<absl::StatusOr<HostPagePtr>> pages_ ABSL_GUARDED_BY(mutex_);
  size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ShmServerImpl : public ShmServer {
 public:
  ShmServerImpl(std::string path, ServiceContext& context)
      : path_(std::move(path)), context_(context) {}
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
    connections_.emplace(number, std::make_shared<Connection>(std::move(fd), epoll_.get()));
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

  std::shared_ptr<Connection> Find(int fd) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto found = connections_.find(fd);
    return found == connections_.end() ? nullptr : found->second;
  }

  void Forget(const std::shared_ptr<Connection>& connection) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (connection->session().has_value()) {
      context_.sessions.RemoveStream(*connection->session(), connection.get());
    }
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->fd(), nullptr);
    connection->Cut();
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
        const std::shared_ptr<Connection> connection = Find(events[i].data.fd);
        if (connection == nullptr) continue;
        if ((events[i].events & EPOLLOUT) != 0) connection->OnWritable();
        if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0 && !Read(connection)) {
          Forget(connection);
        }
      }
    }
  }

  // False: the connection is over.
  bool Read(const std::shared_ptr<Connection>& connection) {
    constexpr int kPacketsAtOnce = 2;  // then the others have their turn
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      absl::StatusOr<std::optional<Packet>> packet = TryReceivePacket(connection->fd(), 256);
      if (!packet.ok()) return false;
      if (!packet->has_value()) return true;
      if ((*packet)->bytes.empty() || !Handle(connection, (*packet)->bytes)) return false;
    }
    return true;
  }

  bool Handle(const std::shared_ptr<Connection>& connection, const std::string& bytes) {
    if (!connection->session().has_value()) {
      shm::Hello hello;
      if (bytes.size() != sizeof(hello)) return false;
      std::memcpy(&hello, bytes.data(), sizeof(hello));
      return hello.magic == shm::kMagic && Introduce(connection, SessionId{hello.session_id});
    }
    shm::Request request;
    if (bytes.size() != sizeof(request)) return false;
    std::memcpy(&request, bytes.data(), sizeof(request));
    switch (request.op) {
      case shm::Op::kLocate:
        if (connection->locating().load(std::memory_order_relaxed) >= kLocatingMax) return false;
        std::make_shared<Locating>(context_, connection, request.tag)->Run(request);
        return true;
      case shm::Op::kOpen:
        OpenMemory(*connection, request);
        return true;
    }
    return false;
  }

  bool Introduce(const std::shared_ptr<Connection>& connection, const SessionId& session) {
    connection->set_session(session);
    return context_.sessions.AddSideStream(session, connection).ok();
  }

  void OpenMemory(Connection& connection, const shm::Request& request) const {
    absl::StatusOr<SharedChunk> chunk =
        connection.Allows(request.memfd_id)
            ? context_.store.ShareMemory(request.memfd_id)
            : absl::PermissionDeniedError("no leased page was found in that memory");
    shm::Reply reply;
    reply.op = shm::Op::kOpen;
    reply.tag = request.tag;
    reply.last = 1;
    reply.code = static_cast<int32_t>(chunk.status().code());
    std::string packet;
    Append(packet, reply);
    if (!chunk.ok()) {
      absl::StrAppend(&packet, chunk.status().message());
      return connection.Send(std::move(packet));
    }
    Append(packet, shm::Memory{static_cast<uint64_t>(chunk->memfd_bytes),
                               static_cast<uint64_t>(chunk->chunk_bytes)});
    connection.Send(std::move(packet), std::move(chunk->fd));
  }

  const std::string path_;
  ServiceContext& context_;
  UniqueFd epoll_;
  UniqueFd stop_;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;

  absl::Mutex mutex_;
  absl::flat_hash_map<int, std::shared_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShmServer>> ShmServer::Start(const std::string& path, mode_t mode,
                                                            ServiceContext& context) {
  auto server = std::make_unique<ShmServerImpl>(path, context);
  PAGODA_RETURN_IF_ERROR(server->Open(mode));
  return server;
}

}  // namespace pagoda
