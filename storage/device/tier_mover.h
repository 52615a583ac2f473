// Pages on their way between device memory and pinned host memory. It copies and says when; which
// page goes where, and what becomes of it when a copy fails, is its caller's.
//
//   Submit --> h2d or d2h stream: [wait after] layer 0 | event | layer 1 | event | ... --> done
//
// A move holds whatever keeps its memory alive until the device is done with it: also beyond its
// deadline, its cancellation and its caller's interest. Layers are copied in order, and each can be
// waited for: by a stream of this process (event), by one of another (flag word), by the CPU.
//
// Threads    every method from any thread. `done` is called once, from Poll or the mover's thread,
//            never under a lock, before what the move kept is let go
// Ownership  the runtime, and streams and words given to a move, outlive the mover; a LayerMove may
//            outlive it
// Errors     RESOURCE_EXHAUSTED  beyond bytes_in_flight_max or moves_in_flight_max: nothing is
//                                queued, the caller leaves the page where it is
//            INVALID_ARGUMENT    no layer, too many, or a direction that leaves the host out
//            DEADLINE_EXCEEDED, CANCELLED   to `done`; the copy may still run
//            others as in runtime.h: from Submit when the device takes no work, else to `done`
// Limits     MoverOptions. Fragments under 28 KiB from the host are slow (copy engines), so a
//            caller with small planes puts several layers into one
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"
#include "storage/device/runtime.h"

namespace pagoda {

struct MoverOptions {
  int64_t bytes_in_flight_max = int64_t{256} << 20;  // 10 ms of PCIe 5: what a promotion waits for
  int32_t moves_in_flight_max = 1024;
  int32_t layers_max = 1024;  // of one move; each takes an event
  bool own_thread = true;     // false: the caller polls
  absl::Duration poll_pause = absl::Microseconds(50);
  absl::Duration drain_timeout = absl::Seconds(10);  // of the destructor; then memory is leaked
  absl::Status Validate() const;
};

struct Move {
  CopyDirection direction = CopyDirection::kHostToDevice;
  std::vector<std::vector<CopyPiece>> layers;     // in the order in which they are wanted
  std::vector<std::shared_ptr<const void>> keep;  // owners of both ends
  DeviceEvent* after = nullptr;  // the sources are complete at this point; null: now
  uint64_t* progress = nullptr;  // flag word: written to progress_base + layers that are there
  uint64_t progress_base = 0;
  absl::Duration timeout = absl::Seconds(10);
  std::function<void(const absl::Status&)> done;  // may be empty
};

// A move under way, or ended.
class LayerMove {
 public:
  ~LayerMove();
  // What follows in `consumer` waits for this layer. An error: the layer does not come.
  absl::Status WaitLayer(DeviceStream& consumer, size_t layer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The CPU waits.
  absl::Status AwaitLayer(size_t layer, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Empty: under way. Set once.
  std::optional<absl::Status> result() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t layer_count() const { return events_.size(); }

 private:
  friend class TierMover;
  // Events for later moves; making one is a call to the driver.
  struct EventPool {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<DeviceEvent>> free ABSL_GUARDED_BY(mutex);
  };

  LayerMove(DeviceRuntime& runtime, std::shared_ptr<EventPool> pool)
      : runtime_(runtime), pool_(std::move(pool)) {}
  absl::Status LayerError(size_t layer) const ABSL_LOCKS_EXCLUDED(mutex_);
  bool SetResult(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);  // false: there is one

  // Constant after Submit.
  DeviceRuntime& runtime_;
  const std::shared_ptr<EventPool> pool_;
  std::vector<std::unique_ptr<DeviceEvent>> events_;  // one for each layer

  mutable absl::Mutex mutex_;
  std::optional<absl::Status> result_ ABSL_GUARDED_BY(mutex_);
};

struct MoverStats {
  int64_t bytes_by_direction[2] = {};  // by CopyDirection; of moves that ended well
  int64_t done_count = 0;
  int64_t failed_count = 0;  // by the device
  int64_t timed_out_count = 0;
  int64_t refused_count = 0;
  int64_t in_flight_bytes = 0;
  int64_t in_flight_count = 0;
};

class TierMover {
 public:
  // `clock` measures timeouts.
  static absl::StatusOr<std::unique_ptr<TierMover>> Create(DeviceRuntime& runtime,
                                                           const Clock& clock,
                                                           const MoverOptions& options);
  // Waits for what is under way, up to drain_timeout.
  ~TierMover();

  // On an error `done` is not called.
  absl::StatusOr<std::shared_ptr<LayerMove>> Submit(Move move) ABSL_LOCKS_EXCLUDED(mutex_);
  // Its `done` gets CANCELLED soon; what it keeps stays until the device is done.
  void Cancel(LayerMove& move);

  // Ends what is done, failed or late; returns how many are under way.
  int64_t Poll() ABSL_LOCKS_EXCLUDED(mutex_);
  MoverStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct InFlight {
    std::shared_ptr<LayerMove> move;
    CopyDirection direction;
    std::vector<std::shared_ptr<const void>> keep;
    std::function<void(const absl::Status&)> done;  // empty once it was called
    int64_t bytes = 0;
    absl::Duration deadline;
    bool recorded = false;  // its last event stands behind all of its copies
  };
  struct Lane {
    absl::Mutex mutex;  // one thread at a time puts work on the stream
    std::unique_ptr<DeviceStream> stream ABSL_GUARDED_BY(mutex);
  };

  TierMover(DeviceRuntime& runtime, const Clock& clock, const MoverOptions& options);
  absl::Status Check(const Move& move) const;
  absl::Status TakeEvents(size_t count, LayerMove& move);
  absl::Status Enqueue(const Move& move, LayerMove& layers, DeviceStream& stream, bool& touched);
  // Whether the device is done with a move, for better or worse.
  std::optional<absl::Status> Ended(InFlight& move);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction, or Create.
  DeviceRuntime& runtime_;
  const Clock& clock_;
  const MoverOptions options_;
  const std::shared_ptr<LayerMove::EventPool> events_;
  Lane lanes_[2];  // by CopyDirection

  // Guarded by mutex_. No call to the device and no callback is made while it is held.
  mutable absl::Mutex mutex_;
  // But for those that a Poll looks at.
  std::deque<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  MoverStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last
};

}  // namespace pagoda
