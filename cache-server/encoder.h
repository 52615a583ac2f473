// Keeps every page at the precision that it needs: no lower than open sequences want, no higher
// than the model's ladder asks once they are gone. Events of sequences go in here; background
// threads encode, shed lo planes and hand settled pages to the SSD.
//
//   event -> SequenceTable -> pages whose need changed -> queue -> thread: target < stored ? encode
//   settled (target reached, in no window) -> TieredStore::PersistAsync
//   host memory above its watermark -> Shed() -> queue, before all others; the store says again
//                                      whether it is to be when its turn comes
//   now and then, if a ladder has such a step -> pages idle for long -> queue
//
// A page that finds the queue full, or no room for its new form, is not forgotten: a later Tick()
// scans host memory for pages above their target. A scan ends where the queue is full, and the next
// one begins there.
//
// Threads    every public method from any thread. Encoding happens on the encoder's threads only,
//            without a lock.
// Ownership  store, models, metrics and clock must outlive it; Stop() before the store goes.
// Limits     queue_pages_max waiting pages; a page waits once, however often it is considered
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache-server/metrics.h"
#include "cache-server/model_registry.h"
#include "cache-server/sequence_table.h"
#include "storage/base/clock.h"
#include "storage/tiered_store.h"

namespace pagoda {

class Encoder {
 public:
  struct Options {
    int32_t threads = 1;
    uint32_t queue_pages_max = 65536;
    absl::Duration scan_period = absl::Seconds(5);  // at most this often
    absl::Duration idle_scan_period =
        absl::InfiniteDuration();  // infinite: no ladder has that step
    SequenceTable::Limits sequences;
  };
  Encoder(const Options& options, TieredStore& store, const ModelRegistry& models, Metrics& metrics,
          const Clock& clock);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Events of sequences; errors as in SequenceTable.
  absl::Status OpenSequence(const SessionId& session, const SequenceId& id,
                            const SequenceShape& shape) ABSL_LOCKS_EXCLUDED(table_mutex_);
  absl::Status AdvanceSequence(const SessionId& session, const SequenceId& id,
                               uint64_t length_tokens) ABSL_LOCKS_EXCLUDED(table_mutex_);
  absl::Status AttachPages(const SessionId& session, const SequenceId& id,
                           absl::Span<const SequencePage> pages) ABSL_LOCKS_EXCLUDED(table_mutex_);
  absl::Status CloseSequence(const SessionId& session, const SequenceId& id)
      ABSL_LOCKS_EXCLUDED(table_mutex_);
  void CloseSession(const SessionId& session) ABSL_LOCKS_EXCLUDED(table_mutex_);
  PageNeed NeedOf(const RecordKey& record) const ABSL_LOCKS_EXCLUDED(table_mutex_);
  size_t sequence_count() const ABSL_LOCKS_EXCLUDED(table_mutex_);

  // A page was stored or loaded, or was not used for `idle`: see whether it is above its target. If
  // it was used before its turn comes, that counts. False: the queue is full.
  bool Consider(const PageRef& page, absl::Duration idle = absl::ZeroDuration())
      ABSL_LOCKS_EXCLUDED(queue_mutex_);
  // For PageForms: bytes that a page frees when it comes down under pressure, 0 when it may not;
  // and takes such a page, unless the queue is full.
  int64_t ShedGain(const HostPage& page) const ABSL_LOCKS_EXCLUDED(table_mutex_);
  bool Shed(const RecordKey& record, const ScopeId& scope) ABSL_LOCKS_EXCLUDED(queue_mutex_);
  // Closes sequences that were never opened, `age` after their first page came.
  void DropEarlySequences(absl::Duration age) ABSL_LOCKS_EXCLUDED(table_mutex_);
  // Considers every page in host memory (of one model) that is above its ladder or would be written
  // to SSD now, until the queue is full. Returns how many.
  int64_t ConsiderAll(const std::optional<Identity>& identity) ABSL_LOCKS_EXCLUDED(queue_mutex_);
  // Called now and then: scans if something was left out before, and for idle pages.
  void Tick() ABSL_LOCKS_EXCLUDED(queue_mutex_);

  int64_t queued_count() const ABSL_LOCKS_EXCLUDED(queue_mutex_);
  // Waits until nothing is queued or in work; false at the deadline.
  bool AwaitIdle(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(queue_mutex_);
  // Finishes the pages in work and drops the rest. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(queue_mutex_);

 private:
  struct Work {
    PageRef page;
    absl::Duration idle;
    bool pressure = false;
  };
  void Run() ABSL_LOCKS_EXCLUDED(queue_mutex_);
  void Process(const Work& work);
  void ProcessPressure(const PageRef& ref);
  void Persist(const PageRef& ref);
  // The page at `target` in the store, or why not.
  absl::Status Lower(const HostPagePtr& page, Precision target, bool pressure);
  void ConsiderAgain(const std::vector<PageRef>& pages);

  const Options options_;
  TieredStore& store_;
  const ModelRegistry& models_;
  Metrics& metrics_;
  const Clock& clock_;
  // Set when a page was left out: relaxed, the next Tick() sees it.
  std::atomic<bool> scan_wanted_{false};

  mutable absl::Mutex table_mutex_;
  SequenceTable table_ ABSL_GUARDED_BY(table_mutex_);

  mutable absl::Mutex queue_mutex_ ABSL_ACQUIRED_AFTER(table_mutex_);
  std::deque<Work> queue_ ABSL_GUARDED_BY(queue_mutex_);
  std::deque<Work> pressed_ ABSL_GUARDED_BY(queue_mutex_);               // goes first
  absl::flat_hash_set<RecordKey> queued_ ABSL_GUARDED_BY(queue_mutex_);  // in queue_
  int32_t working_ ABSL_GUARDED_BY(queue_mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(queue_mutex_) = false;
  absl::Duration last_scan_ ABSL_GUARDED_BY(queue_mutex_) = absl::ZeroDuration();
  std::atomic<policy::EntryId> scan_begin_{1};  // relaxed: where does not matter much
  std::vector<std::thread> threads_;
};

}  // namespace pagoda
