// An independent account of a simulated world: which copies there are, who leases what, what may
// not go. It is told of every change and says at once when one was not allowed, and it compares
// itself with the store as a whole when asked to.
//
// Threads    one
// Cost       a change: O(leases) for victims, else O(1); Compare: O(pages)
#pragma once

#include <string>
#include <vector>

#include "tests/simulation/sim_store.h"

namespace pagoda::simulation {

// What a client believes to hold.
struct HeldPage {
  int key;
  int life;          // of the page when it was leased
  HostPagePtr page;  // as first read; must stay that
};
struct HeldLease {
  std::string session;
  std::string request;
  LeaseId id = 0;
  int scope_index = 0;
  std::vector<HeldPage> pages;
  absl::Duration expires;
};

class Books : public Witness {
 public:
  explicit Books(const Universe& universe);

  void OnCopy(Tier tier, int key, int form) override;
  void OnGone(Tier tier, int key, Cause cause) override;
  void OnRestart();  // nothing is known any more; leases are gone

  // ---- What the run tells it --------------------------------------------------------------------
  absl::Duration now;
  std::vector<HeldLease> leases;  // an expired one stays until the store's next Tick
  void SetPinned(int key) { pinned_[Index(key)] = true; }
  void ClearPinned(int key) { pinned_[Index(key)] = false; }
  void SetQuarantined(int key) { quarantined_[Index(key)] = true; }
  void ForgetExpired();
  HeldLease* FindLease(const std::string& session, const std::string& request);

  // ---- What it knows ----------------------------------------------------------------------------
  bool alive(int key) const { return host_[Index(key)] != kNoForm || ssd_[Index(key)] != kNoForm; }
  bool resident(int key) const { return host_[Index(key)] != kNoForm; }
  bool quarantined(int key) const { return quarantined_[Index(key)]; }
  bool pinned(int key) const { return pinned_[Index(key)]; }
  int life(int key) const { return life_[Index(key)]; }
  int best_form(int key) const { return resident(key) ? host_[Index(key)] : ssd_[Index(key)]; }
  bool ever_stored(int key, int form) const { return stored_[Index(key)] >> form & 1; }
  int64_t host_bytes() const { return host_bytes_; }
  int64_t victim_count() const { return victim_count_; }

  // The first thing that was wrong; empty if all is well.
  const std::string& wrong() const { return wrong_; }
  void Fail(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }
  // Everything that can be counted twice.
  void Compare(const SimStore& store, const SimDisk& disk);

 private:
  static size_t Index(int key) { return static_cast<size_t>(key); }
  void CheckVictim(Tier tier, int key);
  void ComparePages(const SimStore& store);
  void CompareSums(const SimStore& store, const SimDisk& disk);
  void CompareCounters(const prefetch::Counters& counters);

  const Universe& universe_;
  std::vector<std::vector<int>> children_;
  std::vector<int> host_;  // the form of the copy, or kNoForm
  std::vector<int> ssd_;
  std::vector<int> life_;
  std::vector<bool> pinned_;
  std::vector<bool> quarantined_;
  std::vector<bool> cut_;  // gone for a reason that may leave followers behind
  std::vector<int> stored_;
  int64_t host_bytes_ = 0;
  int64_t ssd_bytes_ = 0;
  int64_t victim_count_ = 0;
  std::string wrong_;
};

}  // namespace pagoda::simulation
