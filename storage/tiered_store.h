// The store: pages in host memory and on SSD, found by key, read under leases, demoted leaf first.
// It joins the tiers, the directory, the policy and the leases, and is the only object that the
// server uses. It knows no codec and no model: an encoder hands it the new form of a page.
//
//   Stage -> write segments -> Commit -> [ReplaceEncoding] -> PersistAsync -> demotion -> LoadAsync
//
// Threads    every method from any thread. Callbacks come on the caller's or a loader's thread,
//            never under a lock; they must not block for long.
// Ownership  pages and staged pages may outlive the store. The observer and the clock must outlive
//            it.
// Errors     RESOURCE_EXHAUSTED   no room now (memory, queue, leases); nothing was changed
//            FAILED_PRECONDITION  unknown parent; another scope owns the key
//            NOT_FOUND            no such page for this scope (of another scope: the same answer)
//            DATA_LOSS            checksum; the page has been dropped and counted
//            ABORTED              lost a race; try again from the start
//            UNAVAILABLE          shut down, or the disk fails
// Cost       LookupPrefix: one lock, O(keys)
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "storage/base/clock.h"
#include "storage/directory.h"
#include "storage/host_page.h"
#include "storage/host_tier.h"
#include "storage/lease_table.h"
#include "storage/policy/circuit_breaker.h"
#include "storage/policy/compaction.h"
#include "storage/policy/shed_plan.h"
#include "storage/prefetch/prefetch_scheduler.h"
#include "storage/ssd_tier.h"
#include "storage/store_observer.h"
#include "storage/store_stats.h"
#include "storage/subtree_walk.h"
#include "storage/tiered_store_options.h"
#include "storage/work_queue.h"

namespace pagoda {

enum class PageState : uint8_t {
  kReady = 0,    // in host memory
  kLoading = 1,  // on SSD, perhaps with a lower form in memory; readable after LoadAsync
};

struct PlacedPage {
  TierKind tier = TierKind::kHost;
  PageState state = PageState::kReady;
  Precision precision = Precision::kNone;
  Precision fidelity = Precision::kNone;
  PlaneMask planes = 0;
  int64_t bytes = 0;
  uint64_t base_position = 0;
  uint32_t page_tokens = 0;
};

// Asks for a lease on what the lookup finds. An empty session id asks for none.
struct LeaseTerms {
  std::string session_id;
  std::string request_id;
  absl::Duration ttl;
};

struct LookupQuery {
  ScopeId scope;
  std::optional<Identity> identity;  // a page of another identity is a miss
  absl::Span<const RecordKey> keys;  // one chain, root side first
  Precision precision_min = Precision::kNone;
  Precision fidelity_min = Precision::kNone;
  bool touch = true;  // counts as a use, once for each request with a lease; a peek does not
  LeaseTerms lease;
};

struct LookupAnswer {
  std::vector<PlacedPage> pages;  // of keys[0 .. pages.size()): the longest prefix
  LeaseId lease = 0;              // 0: none asked, or nothing found
};

// Pages that a request will want soon.
struct PrefetchQuery {
  ScopeId scope;
  std::optional<Identity> identity;
  absl::Span<const RecordKey>
      keys;                 // root side first; the first one that is not stored ends a hint
  absl::Duration deadline;  // from now; zero: Options::hint_deadline. Dropped when it passes
  // The first layer of each key's layer group: the request runs already, and layer by layer it
  // comes to them (a sequence). Empty: a hint.
  absl::Span<const uint32_t> first_layers;
  std::string session_id;  // whose end takes the hint back; empty: nobody's
  std::string request_id;  // of a sequence: whose release takes it back
};

struct CommitOptions {
  // Replaces a stored page of the same fidelity when its precision is below this and the new
  // page's is higher (a hit whose window pages were too coarse is recomputed and pushed again).
  Precision keep_at_least = Precision::kNone;
};

// What becomes of the copy on SSD when a page in memory gets a lower form.
enum class SsdCopy : uint8_t {
  kFollows = 0,  // written anew, in the background
  kStays = 1,    // what is there is worth more than the new form
};

// Another form of a page, to be written to SSD in its place.
struct SsdForm {
  PageHeader header;                  // offsets and checksums set
  std::vector<ByteSpan> segments;     // with their padding
  std::shared_ptr<const void> owner;  // of the bytes
};

// What only who knows the codec can say. Called without a lock; must not call the store.
struct PageForms {
  // Nobody is asked about pages at this precision or below.
  Precision shed_floor = Precision::kQ4;
  // Host memory is above its watermark, and this is one of its coldest pages above the floor: how
  // many bytes a lower form of it would free; 0: it stays as it is. Set both of the two, or none.
  std::function<int64_t(const HostPage&)> shed_gain;
  // Such a page is to take that form soon: TakeShed(), then ReplaceEncoding() or EndShed(). False:
  // it will not.
  std::function<bool(const RecordKey&, const ScopeId&)> shed;
  // The form in which a page is written to SSD; nothing: as it is in memory.
  std::function<std::optional<SsdForm>(const HostPage&)> on_ssd;
  // The precision of that form; null where on_ssd is.
  std::function<Precision(const HostPage&)> ssd_precision;
};

struct EvictResult {
  int64_t page_count = 0;
  int64_t host_bytes = 0;
  int64_t ssd_bytes = 0;
};

class TieredStore {
 public:
  using LoadCallback = std::function<void(absl::StatusOr<HostPagePtr>)>;

  // Opens the tiers and rebuilds the directory from SSD. Pages whose chain is broken are deleted
  // and counted. `observer` may be null.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Open(const TieredStoreOptions& options,
                                                           const Clock& clock = SystemClock(),
                                                           StoreObserver* observer = nullptr);
  // Shuts down without persisting, unless Shutdown() was called before.
  ~TieredStore();
  TieredStore(const TieredStore&) = delete;
  TieredStore& operator=(const TieredStore&) = delete;

  // ---- Writing -----------------------------------------------------------------------------
  // Memory for one page; header.scope must be `scope`. Beyond the hard watermark clean pages are
  // dropped at once; if that is not enough RESOURCE_EXHAUSTED.
  absl::StatusOr<StagedPage> Stage(const ScopeId& scope, PageHeader header)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Verifies every segment, then makes the page visible. A key that exists stays as it is, unless
  // fidelity rises or CommitOptions says so. DATA_LOSS: a segment does not match its checksum.
  absl::StatusOr<CommitOutcome> Commit(StagedPage page, const CommitOptions& options = {})
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Puts another encoding of the same content in the place of `expected` (as GetResident gave it).
  // ABORTED if that is not the stored page any more.
  absl::Status ReplaceEncoding(const HostPagePtr& expected, StagedPage page,
                               SsdCopy on_ssd = SsdCopy::kFollows) ABSL_LOCKS_EXCLUDED(mutex_);
  // Set once, at the start.
  void SetPageForms(PageForms forms) ABSL_LOCKS_EXCLUDED(mutex_);
  // A page whose turn has come after PageForms::shed. Null, and nothing is expected of it any more,
  // when it is not to become smaller after all: it was asked too long ago, is in use, pinned or hot
  // by now, or memory is short no longer.
  HostPagePtr TakeShed(const RecordKey& key, const ScopeId& scope) ABSL_LOCKS_EXCLUDED(mutex_);
  // It stays as it is. Unless `ask_again` it is not asked before another form took its place.
  void EndShed(const RecordKey& key, const ScopeId& scope, bool ask_again)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies a page to SSD in the background; it then lives in both. OK when there is nothing to do:
  // it is there already, there is no SSD, or its admission is not "always" and will decide when the
  // page leaves host memory. RESOURCE_EXHAUSTED when the queue is full.
  absl::Status PersistAsync(const RecordKey& key, const ScopeId& scope) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Reading -----------------------------------------------------------------------------
  // RESOURCE_EXHAUSTED only for the lease; without one it cannot fail.
  absl::StatusOr<LookupAnswer> LookupPrefix(const LookupQuery& query) ABSL_LOCKS_EXCLUDED(mutex_);

  // The page if it is in host memory, else null.
  HostPagePtr GetResident(const RecordKey& key, const ScopeId& scope) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls back once: inline when the page is resident or the answer is known, else after one read
  // from SSD, which all callers of the same page share. UNAVAILABLE while the disk is set aside,
  // and when the read has not ended by its deadline (load_timeout). A lower form than `at_least` in
  // memory gives way to the copy on SSD; where that is not better, it is the answer.
  void LoadAsync(const RecordKey& key, const ScopeId& scope, LoadCallback callback,
                 Precision at_least = Precision::kNone) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for a page of a living lease. NOT_FOUND where only less is left than the lookup named.
  void LoadLeased(absl::string_view session_id, LeaseId id, const RecordKey& key,
                  LoadCallback callback) ABSL_LOCKS_EXCLUDED(mutex_);

  // Pages of a living lease that come up from SSD together: read layer by layer over all of them,
  // so that the first layer of every page is there before anything that only later layers need.
  //
  // Threads  calls come on the store's threads or the caller's, without the store's lock; those
  //          about one page one after another. They must not call the store, but for OnDone
  class LayerListener {
   public:
    virtual ~LayerListener() = default;
    // Memory for the page, its header known. Its segments' bytes are not there yet, and nobody else
    // sees it; it becomes the page's memory if OnDone() is well.
    virtual void OnBegun(size_t index, const HostPagePtr& page) = 0;
    // A segment's bytes are there, verified.
    virtual void OnSegment(size_t index, uint32_t segment) = 0;
    // Once a page, as a LoadCallback; without OnBegun() where the page was there, is loaded in
    // another way, or does not come.
    virtual void OnDone(size_t index, absl::StatusOr<HostPagePtr> page) = 0;
  };
  struct LayerPage {
    size_t index = 0;  // for the listener
    RecordKey key;
  };
  void LoadLeasedByLayer(absl::string_view session_id, LeaseId id,
                         absl::Span<const LayerPage> pages, std::shared_ptr<LayerListener> listener)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Prefetch ----------------------------------------------------------------------------
  // Asks for pages to be in memory by a deadline; see storage/README.md for what may keep them out.
  // Returns how many of the pages are in memory, on their way, or accepted to come.
  int64_t Prefetch(const PrefetchQuery& query) ABSL_LOCKS_EXCLUDED(mutex_);
  // Called, without a lock, for every page that came up ahead of a request. Set once, at the start.
  void SetPrefetchListener(std::function<void(const RecordKey&, const ScopeId&)> listener)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Called, without a lock, with the key of every page whose form in memory has gone: dropped,
  // replaced by another one, or quarantined. For who keeps copies of it elsewhere. Set once, at the
  // start.
  void SetHostListener(std::function<void(const RecordKey&)> listener) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Leases ------------------------------------------------------------------------------
  // A lease on exactly these pages, all in one term. ABORTED if one of them is gone.
  absl::StatusOr<LeaseId> AcquireLease(const ScopeId& scope, absl::Span<const RecordKey> keys,
                                       const LeaseTerms& terms) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RenewLease(absl::string_view session_id, LeaseId id, absl::Duration ttl)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The leased page: as it was when the lease was granted, or as loaded since. Null while it still
  // loads. NOT_FOUND when the lease has ended or does not name the page.
  absl::StatusOr<HostPagePtr> GetLeased(absl::string_view session_id, LeaseId id,
                                        const RecordKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Memory for a process of this machine that may read its scope; see HostTier::Share.
  absl::StatusOr<SharedChunk> ShareMemory(uint64_t memfd_id) const {
    return host_->Share(memfd_id);
  }
  // 0: there is no such lease any more. Another number once it names other pages.
  uint64_t LeaseGrant(absl::string_view session_id, LeaseId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Record keys of a living lease, in the order of the lookup. INVALID_ARGUMENT: it has fewer.
  absl::StatusOr<std::vector<RecordKey>> LeasedKeys(absl::string_view session_id, LeaseId id,
                                                    uint32_t begin, uint32_t count)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Each returns the number of leases ended.
  int64_t ReleaseLease(absl::string_view session_id, LeaseId id) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t ReleaseRequest(absl::string_view session_id, absl::string_view request_id)
      ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t ReleaseSession(absl::string_view session_id) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t ExpireLeases() ABSL_LOCKS_EXCLUDED(mutex_);  // also done every demotion_period

  // ---- Administration ----------------------------------------------------------------------
  // Pinned pages are neither demoted nor dropped under pressure. NOT_FOUND as GetResident.
  absl::Status Pin(const RecordKey& key, const ScopeId& scope) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Unpin(const RecordKey& key, const ScopeId& scope) ABSL_LOCKS_EXCLUDED(mutex_);
  // A quarantined page is a miss for everyone until a commit replaces it or Remove drops it. Its
  // copy on SSD is deleted, so that a restart does not bring it back.
  absl::Status Quarantine(const RecordKey& key, const ScopeId& scope) ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops the page from all tiers, and with it all pages that follow it, leaves first, in slices.
  // Readers and leases that hold it keep their bytes.
  absl::StatusOr<EvictResult> Remove(const RecordKey& key, const ScopeId& scope)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for every page that matches. Pinned pages too: who asks means it.
  EvictResult Evict(const PageFilter& filter) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes effect at once. A tier whose eviction policy changes keeps the order of last use; that
  // takes O(n log n) under the lock, n pages: about a second for two million.
  // INVALID_ARGUMENT as StorePolicies::Validate; nothing was changed.
  absl::Status SetPolicies(const StorePolicies& policies) ABSL_LOCKS_EXCLUDED(mutex_);
  StorePolicies policies() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Shares of a query's attention that fell on the pages; keys that are not stored are ignored.
  void ReportAttention(const ScopeId& scope, absl::Span<const RecordKey> keys,
                       absl::Span<const double> masses) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls back for every page, in no order, from a copy: the store is not locked meanwhile.
  void ForEachPage(absl::FunctionRef<void(const PageInfo&)> callback) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, once around from slot `begin` on, while `callback` says true. Returns the slot of the
  // page for which it said false: there the next one may begin.
  EntryId ScanPages(EntryId begin, absl::FunctionRef<bool(const PageInfo&)> callback)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // How long the page was not used; nothing if it is not stored.
  std::optional<absl::Duration> IdleTime(const RecordKey& key, const ScopeId& scope) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  StoreStats Stats() ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts everything again: slabs against the host tier's sums, those against the directory's and
  // each scope's, those against every entry; SSD likewise, when no change of it is on its way.
  // INTERNAL says what differs. Cost: O(slabs + entries) under the lock.
  absl::Status CheckAccounting() ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until everything queued for SSD is written and flushed to the disk. UNAVAILABLE when the
  // disk does not take it within minutes.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new work, ends the leases, writes what is only in host memory to SSD until the deadline
  // (parents before children, so that what is written is reachable), flushes, stops. Blocks.
  absl::Status Shutdown(absl::Duration deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  bool has_ssd() const { return ssd_ != nullptr; }
  const HostTier& host_tier() const { return *host_; }
  // For a tier above it; outlives the store where somebody holds it.
  const std::shared_ptr<HostTier>& shared_host_tier() const { return host_; }
  // Of the SSD folder; empty without SSD.
  std::string ssd_instance_id() const { return ssd_ ? ssd_->instance_id() : ""; }

 private:
  // What a locked section leaves to do without the lock: tell the observer, let go of pages.
  struct Aftermath {
    std::vector<HostPagePtr> pages;
    std::vector<std::function<void(StoreObserver&)>> events;
    std::vector<RecordKey> ssd_deletions;
    std::vector<RecordKey> left_host;  // for who listens
    int64_t freed_bytes = 0;
  };
  struct Source {  // what a load needs to know of its page
    ScopeId scope;
    Identity identity;
    uint64_t incarnation = 0;
    uint32_t ssd_version = 0;
    bool demanded = true;  // see Load
  };
  struct LayerGroup;  // pages that come up together
  struct LayerLoad;   // one of them
  class LayerTeller;  // who hears of it
  struct Load {
    std::vector<LoadCallback> waiters;
    absl::Duration deadline;  // then who waits is answered, and who comes is refused
    bool demanded = false;    // by a request; else only by prefetch, and then it may not evict
    Precision at_least = Precision::kNone;  // a lower form in memory is not the answer
    // When a read of its group last ended, of a load by layers: while it goes on nobody is late.
    std::shared_ptr<const std::atomic<int64_t>> progress_ns;
    std::shared_ptr<LayerTeller> teller;  // of a load by layers: who comes later hears it, too
    prefetch::PageId prefetched = prefetch::kNoPage;
    int64_t reserved_bytes = 0;  // of the room that prefetch keeps for it
  };
  struct DiskWork {
    policy::CircuitBreaker::Epoch epoch = 0;
    absl::Duration began;
  };
  class PrefetchWorld;  // what the scheduler sees of the store

  TieredStore(const TieredStoreOptions& options, const Clock& clock, StoreObserver* observer);
  absl::Status Rebuild() ABSL_LOCKS_EXCLUDED(mutex_);
  void StartThreads();
  void StopThreads() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerPendingLoads() ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(Aftermath& after) ABSL_LOCKS_EXCLUDED(mutex_);

  // tiered_store_policies.cc
  policy::Watermarks host_marks() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What holds back a pick of victims that begins now: floors and hot pages.
  policy::EvictionGuard GuardOf(TierKind tier, const ScopeId* presser) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  policy::VictimCandidate CandidateOf(TierKind tier, EntryId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a page that leaves host memory is written to SSD: asked once, for the answer is
  // remembered.
  bool Admitted(EntryId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WorthWritingEarly(EntryId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // tiered_store_accounting.cc
  // The sums against one another, in debug builds after every change. Cost: O(scopes).
  void FillTierStats(StoreStats& stats) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTotals() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // tiered_store_compact.cc
  // Empties the sparsest chunk of host memory, if it can. Returns the bytes moved.
  int64_t CompactOneChunk() ABSL_LOCKS_EXCLUDED(mutex_);
  void CompactIfFragmented() ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t MovePage(EntryId id, uint32_t chunk, Aftermath& after) ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayMove(EntryId id, long references) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // tiered_store_write.cc
  absl::StatusOr<StagedPage> StageWithRoom(PageHeader header, bool may_evict = true)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<CommitOutcome> PlaceLocked(const HostPagePtr& page, const CommitOptions& options,
                                            Aftermath& after) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<CommitOutcome> Place(const HostPagePtr& page, const CommitOptions& options,
                                      Aftermath& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckParent(const PageHeader& header) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool QueueWrite(EntryId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayWriteEarly(EntryId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WritePage(const RecordKey& key, uint64_t incarnation) ABSL_LOCKS_EXCLUDED(mutex_);
  // The form of a page on SSD, by PageForms.
  std::optional<SsdForm> FormOnSsd(const HostPage& page) const ABSL_LOCKS_EXCLUDED(mutex_);
  Precision SsdPrecisionOf(const HostPage& page) const ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishWrite(EntryId id, const HostPagePtr& page, const CopyInfo& written,
                   const absl::Status& status, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeSsdRoom(int64_t bytes, const ScopeId* presser) ABSL_LOCKS_EXCLUDED(mutex_);

  // tiered_store_read.cc
  // The copy that answers a lookup, and whether it has to come up first.
  struct FoundCopy {
    CopyInfo copy;
    bool ready = false;
  };
  std::optional<FoundCopy> FindCopy(EntryId id, const LookupQuery& query) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The form in memory, if a load at `at_least` has nothing to win.
  HostPagePtr GoodEnough(EntryId id, Precision at_least) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunLoad(const RecordKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<HostPagePtr> ReadFromSsd(const RecordKey& key, const Source& source)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLoad(const RecordKey& key, const absl::StatusOr<HostPagePtr>& result)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What becomes of a wish for a page: the answer, nothing where it waits for a load under way, or
  // a load of its own, which somebody has to run.
  enum class LoadStep { kAnswered, kJoined, kNew };
  LoadStep BeginLoad(const RecordKey& key, const ScopeId& scope, Precision at_least,
                     LoadCallback& callback, absl::StatusOr<HostPagePtr>& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The answer to a load before it reads; nothing: it has to, and `source` says what.
  std::optional<absl::StatusOr<HostPagePtr>> BeforeRead(const RecordKey& key, Source& source,
                                                        uint64_t& work) ABSL_LOCKS_EXCLUDED(mutex_);

  // tiered_store_layers.cc
  void RunLayerGroup(LayerGroup& group) ABSL_LOCKS_EXCLUDED(mutex_);
  void OpenLayerLoad(LayerGroup& group, LayerLoad& load) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StageLayerLoad(LayerLoad& load) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndWork(uint64_t work, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadLayerSegment(LayerGroup& group, LayerLoad& load, uint32_t segment)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLayerLoad(LayerLoad& load, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // True when the load has its result; false when it lost a race and must be tried again.
  bool SettleLoad(const RecordKey& key, const Source& source, absl::StatusOr<HostPagePtr>& result,
                  Aftermath& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // tiered_store_health.cc
  // The only reader or writer of this key on SSD, from here to ReleaseKey. Waits for the other.
  void HoldKey(const RecordKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseKey(const RecordKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DeleteOnSsd(const RecordKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Brackets what uses the disk, so that its health is known.
  uint64_t BeginDiskWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndDiskWork(uint64_t work, const absl::Status& status, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DiskSetAside() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteBreaker(Aftermath& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Every demotion_period: late loads, hanging work, lost pages, probes.
  void CheckSsd() ABSL_LOCKS_EXCLUDED(mutex_);
  struct LateLoads {
    std::vector<std::shared_ptr<LayerTeller>> tellers;  // to be silent before waiters hear
    std::vector<LoadCallback> waiters;
  };
  LateLoads TakeLateLoads(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Silence(const std::vector<std::shared_ptr<LayerTeller>>& tellers);
  void ProbeDisk(policy::CircuitBreaker::Epoch epoch) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetLost(const RecordKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // tiered_store_prefetch.cc
  // Never 0. Of a session's hints, or of one request of it.
  static uint64_t PrefetchOwner(absl::string_view session_id, absl::string_view request_id = "");
  prefetch::PageId PageIdOf(EntryId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  EntryId EntryOf(prefetch::PageId page) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveLookup(const LookupQuery& query, absl::Span<const EntryId> ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartPrefetches(Aftermath& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // tiered_store_lease.cc
  // `at_least`: of each page, what its form in memory must have; empty: any will do.
  absl::StatusOr<LeaseId> GrantLease(const ScopeId& scope, absl::Span<const EntryId> ids,
                                     absl::Span<const Precision> at_least, const LeaseTerms& terms,
                                     Aftermath& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unlease(std::vector<LeasedPage> released, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // tiered_store_evict.cc
  // Drops clean pages from host memory, at least `bytes` if there are, for a page of that scope.
  // Returns what was freed.
  int64_t MakeRoom(int64_t bytes, const ScopeId& presser) ABSL_LOCKS_EXCLUDED(mutex_);
  void DemotionLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Bytes above the watermark, or that pushes were refused.
  int64_t ExcessHostBytes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // tiered_store_shed.cc
  // Before pages are demoted: asks for lower forms of the coldest ones.
  void ShedHost() ABSL_LOCKS_EXCLUDED(mutex_);
  // One in `stride` of the pages, others at every call: those that may become smaller, the coldest
  // first.
  std::vector<HostPagePtr> SampleToShed(EntryId stride) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t AskToShed(const PageForms& forms, HostPagePtr page) ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayShed(EntryId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DemoteHost(Aftermath& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayLeaveHost(EntryId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NeedsWriting(EntryId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLastOfItsChain(EntryId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropHost(EntryId id, EvictionReason reason, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteLeftHost(const RecordKey& record, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropSsd(EntryId id, EvictionReason reason, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropEntry(EntryId id, EvictionReason reason, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetDemotion(EntryId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The lock is let go of again and again: nobody waits for a large tenant's end.
  EvictResult EvictSubtrees(absl::FunctionRef<bool(EntryId)> marks, const PageFilter& filter)
      ABSL_LOCKS_EXCLUDED(mutex_);
  EvictResult DropInSlices(absl::Span<const SubtreeWalk::Found> found, const PageFilter& filter)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool DropOne(const SubtreeWalk::Found& page, const PageFilter& filter, EvictResult& result,
               Aftermath& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DeleteOnSsdLater(const RecordKey& key, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void QueueDeletions(const std::vector<RecordKey>& keys) ABSL_LOCKS_EXCLUDED(mutex_);
  void DeleteSome() ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetDeletions() ABSL_LOCKS_EXCLUDED(mutex_);
  bool AwaitDeletions(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountIntegrity(TierKind tier, IntegrityKind kind, Aftermath& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after Open().
  const TieredStoreOptions options_;
  const Clock& clock_;
  StoreObserver* const observer_;  // never null
  std::shared_ptr<HostTier> host_;
  std::unique_ptr<SsdTier> ssd_;  // null without SSD

  // Synchronised by themselves.
  const std::shared_ptr<std::atomic<int64_t>> staged_page_count_ =  // relaxed: for display
      std::make_shared<std::atomic<int64_t>>(0);
  std::unique_ptr<WorkQueue> writer_;
  std::unique_ptr<WorkQueue> loader_;

  // Guarded by mutex_. Under it only the locks of HostTier and WorkQueue are taken.
  mutable absl::Mutex mutex_;
  Directory directory_ ABSL_GUARDED_BY(mutex_);
  LeaseTable leases_ ABSL_GUARDED_BY(mutex_);
  StorePolicies policies_ ABSL_GUARDED_BY(mutex_);
  policy::SsdAdmission admission_ ABSL_GUARDED_BY(mutex_);
  StoreCounters counters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<RecordKey, Load> loads_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<absl::Duration, RecordKey>> load_deadlines_ ABSL_GUARDED_BY(mutex_);
  policy::CircuitBreaker breaker_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, DiskWork> disk_work_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_disk_work_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_set<RecordKey> held_keys_ ABSL_GUARDED_BY(mutex_);  // being changed on SSD
  int64_t flush_failures_seen_ ABSL_GUARDED_BY(mutex_) = 0;
  prefetch::Scheduler prefetch_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const RecordKey&, const ScopeId&)> on_prefetched_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const RecordKey&)> on_left_host_ ABSL_GUARDED_BY(mutex_);
  int64_t prefetch_reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Pages that leave host memory once they are written, and how many bytes that will free.
  absl::flat_hash_map<EntryId, int64_t> demoting_ ABSL_GUARDED_BY(mutex_);
  int64_t demoting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  PageForms forms_ ABSL_GUARDED_BY(mutex_);
  policy::ShedPlan sheds_ ABSL_GUARDED_BY(mutex_);  // pages that will be smaller soon
  absl::Duration next_shed_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  bool shed_enough_ ABSL_GUARDED_BY(mutex_) = false;         // the last time pages were asked
  EntryId shed_hand_ ABSL_GUARDED_BY(mutex_) = 0;            // of SampleToShed()
  std::deque<RecordKey> deletions_ ABSL_GUARDED_BY(mutex_);  // of records, to be done
  bool deleting_ ABSL_GUARDED_BY(mutex_) = false;            // a job for them is queued or runs
  int64_t deletions_asked_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t deletions_done_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ssd_changes_ ABSL_GUARDED_BY(mutex_) = 0;     // on their way to the SSD
  bool ssd_refused_ ABSL_GUARDED_BY(mutex_) = false;    // a change failed: what is there is unknown
  int64_t pressure_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // asked by Stage in vain
  bool demotion_asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool prefetch_asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;   // new work is refused
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;  // the demotion thread ends

  policy::MoveBudget move_budget_;  // of the demotion thread alone
  std::thread demoter_;
};

}  // namespace pagoda
