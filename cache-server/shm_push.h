// Pages that a client of this machine has put into its staging area: a sealed memfd that it alone
// writes and this process alone reads. A page is copied out of it once, and checked as it was
// taken; what the client does to the area meanwhile changes nothing but its own page.
//
// Threads    Stage() and Take() by the server's thread; pages are taken in by a queue's threads,
//            those of one connection one after another
// Ownership  held by the connection's owner and by what is under way; the area goes with it
// Errors     of a page go to the client; a request that is none is said by Take()
// Limits     one area a connection, shm::kStagingBytesMax; shm::kPushesMax pages wait
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache-server/service_context.h"
#include "cache-server/shm_connection.h"
#include "storage/work_queue.h"

namespace pagoda {

// What the staging areas of all clients may take together.
class StagingBudget {
 public:
  explicit StagingBudget(int64_t bytes) : left_(bytes) {}
  bool Take(int64_t bytes) {
    if (left_.fetch_sub(bytes, std::memory_order_relaxed) >= bytes) return true;
    Return(bytes);
    return false;
  }
  void Return(int64_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> left_;  // relaxed: a count, nothing hangs on its order
};

class ShmPushes : public std::enable_shared_from_this<ShmPushes> {
 public:
  // `budget` and `queue` outlive this.
  ShmPushes(ServiceContext& context, StagingBudget& budget, WorkQueue& queue, CallerPtr caller)
      : context_(context), budget_(budget), queue_(queue), caller_(std::move(caller)) {}
  ~ShmPushes();
  ShmPushes(const ShmPushes&) = delete;
  ShmPushes& operator=(const ShmPushes&) = delete;

  const CallerPtr& caller() const { return caller_; }
  // Answers a kStage.
  void Stage(ShmConnection& connection, const shm::Request& request);
  // Answers a kPush, whose bytes these are, in its turn. False: it is no request.
  bool Take(const std::shared_ptr<ShmConnection>& connection, std::string bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Area {
    const std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  struct Waiting {
    std::shared_ptr<ShmConnection> connection;
    std::string bytes;
  };

  absl::StatusOr<UniqueFd> MakeArea(uint64_t bytes);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeIn(const Waiting& push);

  ServiceContext& context_;
  StagingBudget& budget_;
  WorkQueue& queue_;
  const CallerPtr caller_;
  Area area_;  // set before the first page is taken

  absl::Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // in the queue, or on one of its threads
};

}  // namespace pagoda
