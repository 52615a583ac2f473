// Links to workers on other GPUs, of this node or another: for each Peer call a transport, a
// staging buffer, and the request that is under way.
//
//   Open   -> transport, PeerLink, id -> OnOpened; joined by polling, rank 0
//   Fetch  -> PeerPageRequest: pages promoted, all there -> Start(send), OnPages -> moved -> OnIdle
//   Close, a fault, a deadline -> aborted, OnBroken -> drained: pages held until the device is done
//
// Threads    one of its own for all links, which begins with the first: nobody else waits for the
//            device or NCCL. Open, Fetch and Close from any; a sink is called from that thread
// Ownership  holds a sink until its link ends; the context outlives this
// Errors     UNIMPLEMENTED, UNAVAILABLE  of Create: no transport. Others go to the sink
// Limits     hbm.peer_links_max links, those that drain included; 32 MiB a request; one request of
// a
//            link at a time
// Cost       polls every 100 us while something moves or joins, every 20 ms else
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache-server/peer_request.h"
#include "cache-server/service_context.h"

namespace pagoda {

// Who has a link.
class PeerSink {
 public:
  virtual ~PeerSink() = default;
  virtual void OnOpened(const PeerLinkId& id, int64_t request_bytes_max) = 0;
  virtual void OnPages(v1::PeerPages pages) = 0;
  // The request is over, and the link takes the next one.
  virtual void OnIdle() = 0;
  virtual void OnBroken(const absl::Status& why) = 0;  // last; also instead of OnOpened
};

struct PeerOpening {
  SessionId session;
  CallerPtr caller;
  DeviceUuid device;  // the worker's
  int64_t staging_bytes = 0;
};

class PeerLinks {
 public:
  // The context's hbm is there.
  static absl::StatusOr<std::unique_ptr<PeerLinks>> Create(ServiceContext& context);
  ~PeerLinks() { Stop(); }
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  void Open(std::shared_ptr<PeerSink> sink, PeerOpening opening) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fetch(const PeerSink* sink, v1::PeerFetch wanted) ABSL_LOCKS_EXCLUDED(mutex_);
  // The sink is not called any more soon after. Idempotent.
  void Close(const PeerSink* sink) ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t link_count() const { return link_count_.load(std::memory_order_relaxed); }

 private:
  struct Job {
    const PeerSink* sink = nullptr;
    std::shared_ptr<PeerSink> opens;  // of Open
    PeerOpening opening;
    std::optional<v1::PeerFetch> fetch;  // neither: Close
  };
  struct Link {
    std::shared_ptr<PeerSink> sink;
    PeerOpening opening;
    std::unique_ptr<PeerTransport> transport;
    std::unique_ptr<PeerLink> link;
    std::optional<PeerPageRequest> request;
    enum class Stage : uint8_t { kWaits, kArrives, kMoves } stage = Stage::kWaits;
  };

  explicit PeerLinks(ServiceContext& context) : context_(context) {}
  void Post(Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(Job job);
  absl::StatusOr<std::unique_ptr<PeerTransport>> OpenTransport() const;
  absl::Status TryOpen(Link& link);
  void Step(Link& link);
  void Send(Link& link, const absl::Status& gathered);
  void End(Link& link, const absl::Status& why);
  void PollAll();
  void Drain();
  bool IsBusy() const;

  ServiceContext& context_;

  absl::Mutex mutex_;
  std::vector<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;

  // Relaxed: a figure for metrics.
  std::atomic<int64_t> link_count_{0};

  // Of its own thread.
  std::map<const PeerSink*, std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<Link>> ended_;  // the device may still read their pages

  std::thread thread_;
};

}  // namespace pagoda
