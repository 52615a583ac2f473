// Pages of host memory that device memory has too, for readers on the GPU: copied layer by layer
// when they are asked for, dropped in the order of their last use when room is needed: those whose
// room the new page can have, since chunks that somebody maps stay with their scope. Every page
// here is in host memory or on SSD as well, so a full tier, a refused copy or a lost device costs
// time only.
//
//   Promote -> slabs -> [host chunks registered] -> h2d, groups of layers in order -> DevicePage
//
// Threads    every method from any thread; DevicePage too
// Ownership  who holds a DevicePagePtr may read it until it lets go: streams that still read it
//            leave a fence on its slabs first (DeviceSlab::KeepUntil). Pages go before the tier,
//            the tier before the runtime
// Errors     RESOURCE_EXHAUSTED  every page that could make way is in use, or too much is under way
//            ABORTED             as DevicePool
//            UNAVAILABLE         the device is lost
//            others as in runtime.h. After any of them the page is read from host memory
// Limits     HbmTierOptions
// Cost       Find: a look-up. Promote: one batched copy for each group of layers, no waiting; room
//            that has to come from another scope or size: O(slabs here)
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"
#include "storage/base/page_header.h"
#include "storage/device/device_pool.h"
#include "storage/device/pinned_memory.h"
#include "storage/device/tier_mover.h"
#include "storage/host_page.h"

namespace pagoda {

struct HbmTierOptions {
  DevicePoolOptions pool;
  MoverOptions mover;
  int64_t pinned_bytes_max = int64_t{64}
                             << 30;  // host chunks registered; beyond it copies are slow
  absl::Duration copy_timeout = absl::Seconds(10);
  absl::Status Validate() const;
};

// One encoding of a page in device memory. Its bytes are there when its layers have come.
class DevicePage {
 public:
  const PageHeader& header() const { return header_; }
  size_t segment_count() const { return slabs_.size(); }
  // Holds the segment's stored bytes, padding included.
  const DeviceSlab& segment(size_t index) const { return slabs_[index]; }
  int64_t bytes() const { return bytes_; }
  // Layers come in groups, in this order.
  size_t group_count() const { return groups_.size(); }
  int group_layer(size_t group) const { return groups_[group]; }
  // Empty: on its way. An error: it does not come.
  std::optional<absl::Status> arrived() const { return arrival_->result(); }

  // What follows in `consumer` waits for all segments of this layer; or the CPU does. An error:
  // they do not come.
  absl::Status WaitLayer(DeviceStream& consumer, int layer) const;
  absl::Status AwaitLayer(int layer, absl::Duration timeout) const;
  absl::Status AwaitAll(absl::Duration timeout) const;

 private:
  friend class HbmTier;
  DevicePage(std::shared_ptr<DevicePool> pool, PageHeader header)
      : pool_(std::move(pool)), header_(std::move(header)) {}
  size_t GroupOf(int layer) const;

  // Constant after Promote.
  const std::shared_ptr<DevicePool> pool_;  // first: outlives the slabs
  const PageHeader header_;
  std::vector<DeviceSlab> slabs_;  // one for each segment
  std::vector<int> groups_;        // first layer of each group, rising
  int64_t bytes_ = 0;
  std::shared_ptr<LayerMove> arrival_;
};

using DevicePagePtr = std::shared_ptr<const DevicePage>;

struct HbmTierStats {
  int64_t page_count = 0;
  int64_t page_bytes = 0;
  std::map<Precision, int64_t> pages_by_precision;
  int64_t promoted_count = 0;  // copies that ended well
  int64_t promoted_bytes = 0;
  int64_t evicted_count = 0;  // made way
  int64_t refused_count = 0;  // no room, or the device would not
  int64_t failed_count = 0;   // copies
};

class HbmTier {
 public:
  // `host` is where the pages come from: it tells this tier of chunks that go.
  static absl::StatusOr<std::unique_ptr<HbmTier>> Create(DeviceRuntime& runtime, HostTier& host,
                                                         const Clock& clock,
                                                         const HbmTierOptions& options);
  ~HbmTier();

  // The page here, or one that is on its way from now on. `keep`: for others to find, too, in the
  // place of another encoding under the same key.
  absl::StatusOr<DevicePagePtr> Promote(const HostPagePtr& page, bool keep = true)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: not here.
  DevicePagePtr Find(const RecordKey& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // Readers keep what they hold.
  void Drop(const RecordKey& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // This page, and no other that has taken its place.
  void Drop(const DevicePage& page) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);

  // For a mover without a thread of its own.
  void Poll() { (void)mover_->Poll(); }

  HbmTierStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);
  DevicePool& pool() { return *pool_; }
  std::shared_ptr<DevicePool> shared_pool() { return pool_; }
  const TierMover& mover() const { return *mover_; }
  PinnedMemory::Report pinned() const { return pinned_->report(); }

 private:
  struct Entry {
    std::shared_ptr<DevicePage> page;
    std::list<RecordKey>::iterator use;
  };

  HbmTier(HostTier& host, const HbmTierOptions& options) : host_(host), options_(options) {}
  absl::StatusOr<std::shared_ptr<DevicePage>> Prepare(const HostPage& page)
      ABSL_LOCKS_EXCLUDED(mutex_);
  Move MoveOf(const HostPagePtr& page, const std::shared_ptr<DevicePage>& target);
  void Ended(const DevicePage& page, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops what was used longest ago of that which makes room for such a slab. False: nothing does.
  bool MakeRoom(const ScopeId& scope, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether nobody reads it, so that its room is there at once.
  bool MayGo(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Chunks that the scope could take if all pages in them went, which may.
  std::set<uint32_t> ChunksToEmpty(const ScopeId& scope) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<DevicePage> Take(const RecordKey& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after Create.
  HostTier& host_;
  const HbmTierOptions options_;
  std::shared_ptr<DevicePool> pool_;
  std::shared_ptr<PinnedMemory> pinned_;

  // Guarded by mutex_. No page is let go and nothing is copied while it is held.
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<RecordKey, Entry> pages_ ABSL_GUARDED_BY(mutex_);
  std::list<RecordKey> uses_ ABSL_GUARDED_BY(mutex_);  // the latest last
  HbmTierStats stats_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<TierMover> mover_;  // last: its thread calls Ended
};

}  // namespace pagoda
