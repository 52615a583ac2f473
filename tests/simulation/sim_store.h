// The store without threads: the rules of TieredStore over the real directory, policies, leases,
// watermarks and prefetch scheduler, with a disk whose reads and writes end when the run says so.
// This is the one file that knows the interfaces of those classes. Every change of a copy is told
// to a Witness, who keeps books of its own and decides whether it was allowed.
//
// Two steps of a read or a write that a daemon's threads could interleave with anything are two
// calls here, so that the run can put anything between them.
//
// Threads    one
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/directory.h"
#include "storage/lease_table.h"
#include "storage/policy/watermarks.h"
#include "storage/prefetch/prefetch_scheduler.h"
#include "tests/simulation/rng.h"
#include "tests/simulation/sim_disk.h"
#include "tests/simulation/universe.h"

namespace pagoda::simulation {

enum class Tier { kHost, kSsd };
// Why a copy goes.
enum class Cause {
  kRoom,    // a policy's victim: only these must respect leases, pins and the order of chains
  kAsked,   // Remove
  kBroken,  // a checksum failed, or the page is in quarantine
  kOrphan,  // found at start without its parent
};

class Witness {
 public:
  virtual ~Witness() = default;
  virtual void OnCopy(Tier tier, int key, int form) = 0;  // a new copy, or another in its place
  virtual void OnGone(Tier tier, int key, Cause cause) = 0;
};

struct SimStoreOptions {
  int64_t host_bytes = int64_t{1} << 20;
  int64_t ssd_bytes = int64_t{3} << 20;
  policy::Watermarks marks;
  int64_t writes_max = 8;  // waiting
  int64_t loads_max = 4;   // being read; more wait
  absl::Duration lease_ttl = absl::Seconds(5);
  bool admit_to_ssd_twice_used = false;  // SSD admission: only what was used again
  prefetch::Options prefetch;
};

struct FoundPage {
  int key;
  bool ready;
};
struct SimAnswer {
  std::vector<FoundPage> pages;
  LeaseId lease = 0;
};

class SimStore : private prefetch::World {
 public:
  enum class Pushed { kStored, kAlreadyStored, kReplaced, kNoParent, kNoRoom };

  SimStore(const SimStoreOptions& options, const Universe& universe, SimDisk& disk,
           Witness& witness);

  // Another eviction policy for a tier, as an operator may choose while the store runs.
  void SetPolicy(Tier tier, absl::string_view name);
  // Reads the directory from the disk, as at a start.
  void Rebuild(absl::Duration now);

  // ---- What clients do ----------------------------------------------------------------------
  Pushed Push(int key, int form, bool keep_at_least_q8, absl::Duration now);
  // `session` empty: no lease. Forms below the wanted precision or fidelity are misses.
  SimAnswer Lookup(const std::vector<int>& keys, int scope_index, int precision_worst,
                   int fidelity_worst, const std::string& session, const std::string& request,
                   absl::Duration now);
  // Its page at the lease's end of things: null while it loads; not OK when the lease has ended.
  absl::StatusOr<HostPagePtr> GetLeased(const std::string& session, LeaseId id, int key,
                                        absl::Duration now);
  bool Renew(const std::string& session, LeaseId id, absl::Duration now);
  void Release(const std::string& session, LeaseId id);
  void ReleaseSession(const std::string& session);
  // True if the page is or comes into memory; the load is then `Waiting` until it is answered.
  bool Load(int key, absl::Duration now);
  void Hint(const std::vector<int>& keys, int scope_index, uint64_t owner, absl::Duration deadline,
            absl::Duration now);
  void CancelHints(uint64_t owner) { scheduler_.Cancel(owner); }
  void Remove(int key, absl::Duration now);
  void Pin(int key, bool pinned);
  void ReportAttention(int key, double mass);
  void Quarantine(int key, absl::Duration now);

  // ---- What the store's own threads do ---------------------------------------------------------
  // One step down the ladder, as the encoder does; false if there is nothing to encode.
  bool Encode(int key);
  void Tick(absl::Duration now);  // demotion, lease expiry
  void Prefetch(absl::Duration now);
  bool StartWrite(absl::Duration now);         // takes the next queued write under way
  void EndWrite(bool ok, absl::Duration now);  // of the one that is under way
  // Takes the next waiting load under way; kNoKey if there is none.
  int StartLoad();
  enum class Read { kOk, kFailed, kBroken };
  void EndLoad(int key, Read read, absl::Duration now);

  // ---- To look at ------------------------------------------------------------------------------
  const Directory& directory() const { return directory_; }
  const LeaseTable& leases() const { return leases_; }
  const prefetch::Scheduler& scheduler() const { return scheduler_; }
  bool write_under_way() const { return writing_.has_value(); }
  int64_t write_count() const { return static_cast<int64_t>(writes_.size()); }
  bool load_waits(int key) const { return loads_.contains(key); }
  int64_t host_used_bytes() const { return directory_.host_bytes() + reserved_bytes_; }
  EntryId Find(int key) const { return directory_.Find(universe_.at(key).record); }
  int KeyOf(EntryId id) const { return universe_.Find(directory_.at(id).record); }
  int HostFormOf(EntryId id) const;
  // Bytes that demotion still has to free, and could not.
  int64_t excess_bytes() const;
  bool MayLeaveHost(EntryId id) const;

 private:
  struct Write {
    int key;
    uint32_t incarnation;
  };
  struct Writing {
    Write what;
    HostPagePtr page;
  };
  struct LoadState {
    uint32_t incarnation;
    uint32_t ssd_version;
    int64_t reserved_bytes;
    bool under_way;
    bool demanded;  // not by prefetch alone
    prefetch::PageId prefetched;
  };

  // prefetch::World
  prefetch::Where WhereIs(prefetch::PageId page) const override;
  int64_t BytesOf(prefetch::PageId page) const override;
  prefetch::PageId ParentOf(prefetch::PageId page) const override;
  std::optional<int64_t> MakeWay(int64_t bytes,
                                 absl::FunctionRef<bool(prefetch::PageId)> is_colder) override;

  prefetch::PageId PageIdOf(EntryId id) const;
  EntryId EntryOf(prefetch::PageId page) const;  // kNoEntry when it is another incarnation
  int SsdFormOf(EntryId id) const;
  bool HasRoom(int64_t bytes, absl::Duration now);
  bool QueueWrite(EntryId id);
  bool NeedsWriting(EntryId id) const;
  bool IsLastOfItsChain(EntryId id) const;
  void FinishWrite(EntryId id, const HostPagePtr& page, bool ok, absl::Duration now);
  bool MakeSsdRoom(int64_t bytes);
  void AddHost(EntryId id, int form, bool dirty);
  void DropHost(EntryId id, Cause cause, absl::Duration now);
  void DropSsd(EntryId id, Cause cause);
  void DropEntry(EntryId id, Cause cause, absl::Duration now);
  void ForgetDemotion(EntryId id) { demoting_.erase(id); }
  void Unlease(const std::vector<LeasedPage>& released);
  void EndOfLoad(int key, bool ok);

  const SimStoreOptions options_;
  const Universe& universe_;
  SimDisk& disk_;
  Witness& witness_;
  Directory directory_;
  LeaseTable leases_;
  prefetch::Scheduler scheduler_;
  std::deque<Write> writes_;
  std::optional<Writing> writing_;
  std::deque<int> load_order_;
  std::map<int, LoadState> loads_;
  std::set<EntryId> demoting_;
  int64_t reserved_bytes_ = 0;  // for loads of prefetch that are to come
  absl::Duration poll_now_;
  std::vector<uint8_t> used_twice_;
};

}  // namespace pagoda::simulation
