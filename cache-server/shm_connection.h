// One client's connection to shared memory: what it is still to be told, and what it may ask for.
//
// Threads    answers from any thread; requests are read by the server's thread alone
// Limits     4 MiB of answers and 64 descriptors that the client has not read: beyond it is cut off
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache-server/session_registry.h"
#include "proto/shm_protocol.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "storage/host_tier.h"

namespace pagoda {

class ShmConnection : public SessionStream {
 public:
  // An honest client asks for one at a time, or for what one page in device memory lies in.
  static constexpr size_t kQueuedFdsMax = 64;

  // `epoll` watches `fd`, and outlives this.
  ShmConnection(UniqueFd fd, int epoll) : fd_(std::move(fd)), epoll_(epoll) {}

  int fd() const { return fd_.get(); }
  absl::Duration since() const { return since_; }
  // Of the server's thread until it is set; constant from then on.
  const std::optional<SessionId>& session() const { return session_; }
  void set_session(const SessionId& id) { session_ = id; }

  void OnSessionEnd(SessionEndReason) override { Cut(); }

  void Send(std::string bytes, UniqueFd along = UniqueFd()) ABSL_LOCKS_EXCLUDED(mutex_);
  // An answer that is a code and a sentence.
  void SendStatus(shm::Op op, uint32_t tag, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendMemory(shm::Op op, uint32_t tag, const shm::Memory& memory, UniqueFd fd)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The socket has room again.
  void OnWritable() ABSL_LOCKS_EXCLUDED(mutex_);
  // The thread that reads sees the end, and forgets this.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);
  bool cut() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Requests that wait for pages; relaxed: a bound, nothing hangs on its order.
  std::atomic<int>& locating() { return locating_; }

  // Memory that the client was told of, and may ask for.
  void Allow(const std::vector<SlabLocation>& locations) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Allows(uint64_t memfd_id) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Outgoing {
    std::string bytes;
    UniqueFd along;
  };

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch(bool writable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd fd_;
  const int epoll_;
  const absl::Duration since_ = SystemClock().Monotonic();
  std::atomic<int> locating_{0};
  std::optional<SessionId> session_;

  mutable absl::Mutex mutex_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t queued_fds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;  // for room in the socket
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<uint64_t> allowed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda
