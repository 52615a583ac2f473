#include "cache-server/shm_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "storage/base/packet_socket.h"

namespace pagoda {
namespace {

constexpr size_t kQueueBytesMax = size_t{4} << 20;
constexpr size_t kMemfdsMax = 65536;  // that one connection may have been told of
constexpr size_t kSentenceMax = 4096;

}  // namespace

void ShmConnection::Send(std::string bytes, UniqueFd along) {
  absl::MutexLock lock(&mutex_);
  if (cut_) return;
  queued_bytes_ += bytes.size();
  if (along.valid()) ++queued_fds_;
  queue_.push_back({std::move(bytes), std::move(along)});
  if (queued_bytes_ > kQueueBytesMax || queued_fds_ > kQueuedFdsMax) return CutLocked();
  if (!watching_) Write();
}

void ShmConnection::SendStatus(shm::Op op, uint32_t tag, const absl::Status& status) {
  shm::Reply reply;
  reply.op = op;
  reply.tag = tag;
  reply.code = static_cast<int32_t>(status.code());
  reply.last = 1;
  std::string packet;
  shm::AppendStruct(packet, reply);
  absl::StrAppend(&packet, status.message().substr(0, kSentenceMax));
  Send(std::move(packet));
}

void ShmConnection::SendMemory(shm::Op op, uint32_t tag, const shm::Memory& memory, UniqueFd fd) {
  shm::Reply reply;
  reply.op = op;
  reply.tag = tag;
  reply.last = 1;
  std::string packet;
  shm::AppendStruct(packet, reply);
  shm::AppendStruct(packet, memory);
  Send(std::move(packet), std::move(fd));
}

void ShmConnection::OnWritable() {
  absl::MutexLock lock(&mutex_);
  Write();
}

void ShmConnection::Cut() {
  absl::MutexLock lock(&mutex_);
  CutLocked();
}

bool ShmConnection::cut() const {
  absl::MutexLock lock(&mutex_);
  return cut_;
}

void ShmConnection::Allow(const std::vector<SlabLocation>& locations) {
  absl::MutexLock lock(&mutex_);
  if (allowed_.size() > kMemfdsMax) allowed_.clear();  // it looks up again
  for (const SlabLocation& location : locations) allowed_.insert(location.memfd_id);
}

bool ShmConnection::Allows(uint64_t memfd_id) const {
  absl::MutexLock lock(&mutex_);
  return allowed_.contains(memfd_id);
}

void ShmConnection::Write() {
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

void ShmConnection::Watch(bool writable) {
  if (watching_ == writable) return;
  watching_ = writable;
  epoll_event event{};
  event.events = EPOLLIN | (writable ? EPOLLOUT : 0u);
  event.data.fd = fd_.get();
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_.get(), &event);
}

void ShmConnection::CutLocked() {
  cut_ = true;
  queue_.clear();
  queued_bytes_ = 0;
  queued_fds_ = 0;
  ::shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace pagoda
