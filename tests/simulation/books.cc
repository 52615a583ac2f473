#include "tests/simulation/books.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace pagoda::simulation {
namespace {

const char* NameOf(Tier tier) { return tier == Tier::kHost ? "host memory" : "SSD"; }

}  // namespace

Books::Books(const Universe& universe) : universe_(universe) {
  const auto count = static_cast<size_t>(universe.key_count());
  children_.resize(count);
  for (int key = 0; key < universe.key_count(); ++key) {
    if (universe.at(key).parent != kNoKey) children_[Index(universe.at(key).parent)].push_back(key);
  }
  life_.assign(count, 0);
  stored_.assign(count, 0);
  OnRestart();
}

void Books::OnRestart() {
  const size_t count = children_.size();
  host_.assign(count, kNoForm);
  ssd_.assign(count, kNoForm);
  pinned_.assign(count, false);
  quarantined_.assign(count, false);
  cut_.assign(count, false);
  for (int& life : life_) ++life;
  host_bytes_ = ssd_bytes_ = 0;
  leases.clear();
}

void Books::OnCopy(Tier tier, int key, int form) {
  std::vector<int>& copies = tier == Tier::kHost ? host_ : ssd_;
  int64_t& bytes = tier == Tier::kHost ? host_bytes_ : ssd_bytes_;
  int& copy = copies[Index(key)];
  if (copy != kNoForm) bytes -= universe_.at(key).bytes(copy);
  copy = form;
  bytes += universe_.at(key).bytes(form);
  stored_[Index(key)] |= 1 << form;
  cut_[Index(key)] = false;
}

void Books::OnGone(Tier tier, int key, Cause cause) {
  std::vector<int>& copies = tier == Tier::kHost ? host_ : ssd_;
  int64_t& bytes = tier == Tier::kHost ? host_bytes_ : ssd_bytes_;
  int& copy = copies[Index(key)];
  if (copy == kNoForm) {
    return Fail(absl::StrFormat("page %d left %s, where it was not", key, NameOf(tier)));
  }
  bytes -= universe_.at(key).bytes(copy);
  copy = kNoForm;
  if (cause == Cause::kRoom) CheckVictim(tier, key);
  if (alive(key)) return;
  ++life_[Index(key)];
  pinned_[Index(key)] = quarantined_[Index(key)] = false;
  cut_[Index(key)] = cause != Cause::kRoom;
}

void Books::CheckVictim(Tier tier, int key) {
  ++victim_count_;
  if (pinned(key)) Fail(absl::StrFormat("pinned page %d was evicted from %s", key, NameOf(tier)));
  for (const HeldLease& lease : leases) {
    if (lease.expires <= now) continue;
    for (const HeldPage& held : lease.pages) {
      if (held.key != key || held.life != life(key)) continue;
      Fail(absl::StrFormat("page %d left %s under lease %d of %s", key, NameOf(tier), lease.id,
                           lease.session));
    }
  }
  const std::vector<int>& copies = tier == Tier::kHost ? host_ : ssd_;
  for (const int child : children_[Index(key)]) {
    if (copies[Index(child)] != kNoForm) {
      Fail(absl::StrFormat("page %d left %s before page %d that follows it", key, NameOf(tier),
                           child));
    }
    if (!alive(key) && alive(child)) {
      Fail(absl::StrFormat("the last copy of page %d, in %s, went before page %d", key,
                           NameOf(tier), child));
    }
  }
}

void Books::ForgetExpired() {
  leases.erase(std::remove_if(leases.begin(), leases.end(),
                              [this](const HeldLease& lease) { return lease.expires <= now; }),
               leases.end());
}

HeldLease* Books::FindLease(const std::string& session, const std::string& request) {
  for (HeldLease& lease : leases) {
    if (lease.session == session && lease.request == request) return &lease;
  }
  return nullptr;
}

void Books::Compare(const SimStore& store, const SimDisk& disk) {
  ComparePages(store);
  CompareSums(store, disk);
  CompareCounters(store.scheduler().counters());
}

void Books::ComparePages(const SimStore& store) {
  std::vector<uint32_t> lease_counts(life_.size(), 0);
  for (const HeldLease& lease : leases) {
    for (const HeldPage& held : lease.pages) {
      if (held.life == life(held.key)) ++lease_counts[Index(held.key)];
    }
  }
  for (int key = 0; key < universe_.key_count(); ++key) {
    const EntryId id = store.Find(key);
    if ((id != kNoEntry) != alive(key)) {
      return Fail(absl::StrFormat("page %d: the directory and the books differ", key));
    }
    if (id == kNoEntry) continue;
    const DirectoryEntry& entry = store.directory().at(id);
    const int parent = universe_.at(key).parent;
    uint32_t children = 0;
    for (const int child : children_[Index(key)]) children += alive(child) ? 1 : 0;
    if (entry.on_ssd() != (ssd_[Index(key)] != kNoForm) ||
        (entry.host != nullptr ? store.HostFormOf(id) : kNoForm) != host_[Index(key)] ||
        entry.pinned != pinned(key) || entry.quarantined != quarantined(key) ||
        entry.lease_count != lease_counts[Index(key)] || entry.child_count != children) {
      return Fail(absl::StrFormat("page %d: its entry and the books differ (leases %d against %d)",
                                  key, entry.lease_count, lease_counts[Index(key)]));
    }
    if (parent != kNoKey && !alive(parent) && !cut_[Index(parent)]) {
      return Fail(absl::StrFormat("page %d is stored, page %d before it is not", key, parent));
    }
  }
}

void Books::CompareSums(const SimStore& store, const SimDisk& disk) {
  const Directory& directory = store.directory();
  int64_t count = 0;
  int64_t pinned_count = 0;
  int64_t leased_count = 0;
  int64_t locked_bytes = 0;
  for (int key = 0; key < universe_.key_count(); ++key) {
    if (!alive(key)) continue;
    ++count;
    const DirectoryEntry& entry = directory.at(store.Find(key));
    pinned_count += entry.pinned ? 1 : 0;
    leased_count += entry.lease_count > 0 ? 1 : 0;
    if (entry.locked() && entry.host != nullptr) locked_bytes += entry.host->bytes();
  }
  const auto equal = [this](const char* what, int64_t is, int64_t should) {
    if (is != should) Fail(absl::StrFormat("%s: %d, by the books %d", what, is, should));
  };
  equal("bytes in host memory", directory.host_bytes(), host_bytes_);
  equal("bytes on SSD", directory.ssd_bytes(), ssd_bytes_);
  equal("bytes on the disk itself", disk.used_bytes(), ssd_bytes_);
  equal("pages", directory.page_count(), count);
  equal("pinned pages", directory.pinned_count(), pinned_count);
  equal("leased pages", directory.leased_count(), leased_count);
  equal("locked bytes", directory.host_policy().locked_bytes(), locked_bytes);
  equal("leases", store.leases().lease_count(), static_cast<int64_t>(leases.size()));
  StoreStats stats;
  directory.FillStats(stats);
  int64_t scope_host_bytes = 0;
  int64_t scope_ssd_bytes = 0;
  for (const ScopeStats& scope : stats.scopes) {
    scope_host_bytes += scope.host_bytes;
    scope_ssd_bytes += scope.ssd_bytes;
  }
  equal("bytes in host memory by scope", scope_host_bytes, host_bytes_);
  equal("bytes on SSD by scope", scope_ssd_bytes, ssd_bytes_);
}

void Books::CompareCounters(const prefetch::Counters& counters) {
  int64_t asked = 0;
  int64_t ended = counters.queued + counters.loading;
  int64_t loaded = 0;
  int64_t spent = counters.resident;
  for (const prefetch::SourceCounters& source : counters.by_source) {
    asked += source.asked;
    loaded += source.loaded;
    ended += source.loaded;
    for (const int64_t dropped : source.dropped) ended += dropped;
    spent += source.used + source.late + source.unused;
  }
  if (asked != ended) Fail(absl::StrFormat("prefetch: %d asked, %d ended", asked, ended));
  if (loaded != spent) Fail(absl::StrFormat("prefetch: %d loaded, %d spent", loaded, spent));
}

}  // namespace pagoda::simulation
