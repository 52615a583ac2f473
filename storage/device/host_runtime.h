// The host as a GPU: device memory is memory of the process (a memfd where it is to be exported),
// streams are queues that run behind the caller's back. For machines without a GPU, which is where
// the order and lifetime of everything above the facade are tested.
//
// What a GPU lets pass, this finds at the call that is wrong, always under kManual, and under
// kThread where the two meet:
//   * memory freed, unregistered or noted as free while an unfinished copy touches it
//   * a copy, clear or flag outside of live memory
//   * unfinished work on the same bytes, one of the two writing, with no event and no flag word
//     that orders them (vector clocks, as a race detector has them)
//   * a stream destroyed with work in it
// A misuse ends the process, or is kept for misuses() and its work skipped.
//
// Order      each step takes one piece of one stream, chosen by the seed: pieces of a batch in any
//            order, sources of host memory now and then when they are submitted, as CUDA may.
// Threads    kThread: one thread runs the steps. kManual: Step() and Await() do, on their caller's,
//            and nothing else moves; Await then gives up at once where nothing can run.
// Faults     FailNext, FailPieceAfter, Lose: for tests
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/device/runtime.h"

namespace pagoda {

struct HostRuntimeOptions {
  enum class Schedule : uint8_t { kThread, kManual };
  Schedule schedule = Schedule::kThread;
  uint64_t seed = 1;                          // of the order of steps
  int64_t memory_bytes = int64_t{256} << 20;  // beyond that RESOURCE_EXHAUSTED
  bool abort_on_misuse = true;
  DeviceUuid uuid = {{0x70, 0x61, 0x67, 0x6f, 0x64, 0x61}};
};

// Calls that FailNext can make fail.
enum class HostCall : uint8_t { kAllocate, kCopy, kFlag, kRecord, kRegister, kExport, kImport };

class HostRuntime final : public DeviceRuntime {
 public:
  explicit HostRuntime(const HostRuntimeOptions& options = {});
  ~HostRuntime() override;

  const DeviceInfo& info() const override { return info_; }
  absl::Status health() const override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status MakeCurrent() override { return health(); }
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t bytes,
                                                         DeviceSharing sharing) override;
  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() override;
  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override;
  absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(std::byte* data,
                                                                 int64_t bytes) override;
  absl::Status Await(DeviceEvent& event, absl::Duration timeout) override;
  absl::StatusOr<MemoryHandle> Export(const DeviceBuffer& buffer) override;
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Import(MemoryHandle handle) override;
  void NoteFreed(const std::byte* data, int64_t bytes) override ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteOwned(const std::byte* data, int64_t bytes) override ABSL_LOCKS_EXCLUDED(mutex_);

  // One piece of work; false when nothing can run. kManual only.
  bool Step() ABSL_LOCKS_EXCLUDED(mutex_);
  void RunUntilIdle() {
    while (Step()) {
    }
  }
  // Work submitted and not done, in streams that wait for something too.
  int64_t unfinished_count() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t used_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The next call of this kind, or the one after `skipped` of them, returns `status`. Several
  // faults of a kind are counted each by itself.
  void FailNext(HostCall call, absl::Status status, int64_t skipped = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Loses the device when this many more pieces have been copied.
  void FailPieceAfter(int64_t pieces) ABSL_LOCKS_EXCLUDED(mutex_);
  void Lose(absl::string_view reason) ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<std::string> misuses() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class HostBuffer;
  friend class HostEvent;
  friend class HostRegistrationImpl;
  friend class HostStream;

  // How far each stream is known to have come: what happened before.
  using VectorClock = std::map<int64_t, int64_t>;
  struct Range {
    const std::byte* begin = nullptr;
    int64_t bytes = 0;
    bool writes = false;
    bool Overlaps(const std::byte* data, int64_t size) const {
      return data < begin + bytes && begin < data + size;
    }
  };
  struct EventState {
    int64_t recorded = 0;  // number of the last Record submitted; 0: none
    int64_t done = 0;
    VectorClock clock;  // of the last Record submitted
  };
  struct Piece {
    CopyPiece copy;                // source null: zeros
    std::vector<std::byte> early;  // of a source that was read when it was submitted
    bool skipped = false;
  };
  struct Work {
    enum class Kind : uint8_t { kPieces, kRecord, kWaitEvent, kWriteFlag, kWaitFlag };
    Kind kind = Kind::kPieces;
    int64_t number = 0;  // in its stream, from 1
    absl::string_view name;
    VectorClock before;  // what is done before this begins
    std::vector<Piece> pieces;
    size_t piece_done_count = 0;
    std::vector<Range> ranges;
    std::shared_ptr<EventState> event;
    int64_t event_number = 0;
    uint64_t* word = nullptr;
    uint64_t value = 0;
  };
  struct StreamState {
    int64_t id = 0;
    int64_t submitted = 0;
    VectorClock clock;
    std::deque<std::unique_ptr<Work>> queue;
  };

  struct Fault {
    HostCall call;
    absl::Status status;
    int64_t skipped;
  };

  absl::Status TakeFault(HostCall call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Submit(StreamState& stream, std::unique_ptr<Work> work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> EventDone(const EventState& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsRunnable(const StreamState& stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyQueued() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyRunnable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool StepLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunPiece(Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseLocked(absl::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitPiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of memory that goes: no unfinished work may touch it.
  void CheckFree(const std::byte* data, int64_t bytes, absl::string_view how)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carve(const std::byte* data, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDevice(const std::byte* data, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsRegistered(const std::byte* data, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsNotedFree(const std::byte* data, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckOrder(const StreamState& stream, const Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Misuse(std::string what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const HostRuntimeOptions options_;
  DeviceInfo info_;

  // Guarded by mutex_. Bytes are copied without it.
  mutable absl::Mutex mutex_;
  std::minstd_rand random_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_stream_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<StreamState*> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, int64_t> buffers_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, int64_t> registered_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, int64_t> noted_free_ ABSL_GUARDED_BY(mutex_);  // disjoint
  std::map<const uint64_t*, VectorClock> flag_clocks_ ABSL_GUARDED_BY(mutex_);
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  int64_t pieces_left_ ABSL_GUARDED_BY(mutex_) = -1;  // until the device is lost; -1: never
  std::vector<std::string> misuses_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // a piece is copied, without the lock
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: runs on all of the above
};

}  // namespace pagoda
