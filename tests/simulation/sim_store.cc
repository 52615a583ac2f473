#include "tests/simulation/sim_store.h"

#include <algorithm>

#include "storage/base/check.h"
#include "storage/directory_record.h"
#include "storage/policy/make_policy.h"
#include "storage/subtree_walk.h"

namespace pagoda::simulation {
namespace {

constexpr long kOurReferences = 2;  // the directory's and the universe's

}  // namespace

SimStore::SimStore(const SimStoreOptions& options, const Universe& universe, SimDisk& disk,
                   Witness& witness)
    : options_(options),
      universe_(universe),
      disk_(disk),
      witness_(witness),
      leases_(LeaseTable::Options{.leases_per_session_max = 8, .leases_max = 24}),
      scheduler_(options.prefetch),
      used_twice_(static_cast<size_t>(universe.key_count()), 0) {}

void SimStore::SetPolicy(Tier tier, absl::string_view name) {
  auto made = policy::MakePolicy(name);
  PAGODA_CHECK(made.ok());
  (*made)->set_capacity_bytes(tier == Tier::kHost ? options_.host_bytes : options_.ssd_bytes);
  tier == Tier::kHost ? directory_.SetHostPolicy(*std::move(made))
                      : directory_.SetSsdPolicy(*std::move(made));
}

void SimStore::Rebuild(absl::Duration now) {
  for (int key = 0; key < universe_.key_count(); ++key) {
    const int form = disk_.FormOf(key);
    if (form == kNoForm) continue;
    const auto& page = universe_.at(key).forms[static_cast<size_t>(form)];
    const auto added = directory_.AddSsd(DirectoryRecordOf(page->header()), now);
    PAGODA_CHECK(added.ok());
    witness_.OnCopy(Tier::kSsd, key, form);
  }
  for (const EntryId id : directory_.Unreachable()) {
    disk_.Delete(KeyOf(id));
    DropSsd(id, Cause::kOrphan);
  }
}

// ---- Names --------------------------------------------------------------------------------------

prefetch::PageId SimStore::PageIdOf(EntryId id) const {
  return prefetch::PageId{directory_.at(id).incarnation} << 32 | id;
}

EntryId SimStore::EntryOf(prefetch::PageId page) const {
  const auto id = static_cast<EntryId>(page & 0xffffffffu);
  if (id == kNoEntry || id >= directory_.slot_count()) return kNoEntry;
  return directory_.at(id).alive() && PageIdOf(id) == page ? id : kNoEntry;
}

int SimStore::HostFormOf(EntryId id) const {
  return universe_.FormOfPage(KeyOf(id), directory_.at(id).host);
}

int SimStore::SsdFormOf(EntryId id) const { return disk_.FormOf(KeyOf(id)); }

// ---- Copies -------------------------------------------------------------------------------------

void SimStore::AddHost(EntryId id, int form, bool dirty) {
  const int key = KeyOf(id);
  directory_.SetHost(id, universe_.at(key).forms[static_cast<size_t>(form)], dirty);
  witness_.OnCopy(Tier::kHost, key, form);
}

void SimStore::DropHost(EntryId id, Cause cause, absl::Duration now) {
  const int key = KeyOf(id);
  ForgetDemotion(id);
  scheduler_.OnLeft(PageIdOf(id), directory_.at(id).on_ssd(), now);
  directory_.DropHost(id);
  witness_.OnGone(Tier::kHost, key, cause);
}

void SimStore::DropSsd(EntryId id, Cause cause) {
  const int key = KeyOf(id);
  directory_.DropSsd(id);
  witness_.OnGone(Tier::kSsd, key, cause);
}

void SimStore::DropEntry(EntryId id, Cause cause, absl::Duration now) {
  const bool resident = directory_.at(id).host != nullptr;
  if (directory_.at(id).on_ssd()) {
    disk_.Delete(KeyOf(id));
    DropSsd(id, cause);
  }
  if (resident) DropHost(id, cause, now);
}

// ---- Room in memory -----------------------------------------------------------------------------

bool SimStore::MayLeaveHost(EntryId id) const {
  const DirectoryEntry& entry = directory_.at(id);
  if (entry.host.use_count() > kOurReferences || demoting_.contains(id)) return false;
  return entry.on_ssd() || entry.child_count == directory_.host_policy().child_count(id);
}

// When it was picked its followers were still there; they may have stayed, here or on SSD.
bool SimStore::IsLastOfItsChain(EntryId id) const {
  const DirectoryEntry& entry = directory_.at(id);
  return directory_.host_policy().child_count(id) == 0 &&
         (entry.on_ssd() || entry.child_count == 0);
}

bool SimStore::NeedsWriting(EntryId id) const {
  return directory_.at(id).dirty && !directory_.at(id).quarantined;
}

bool SimStore::HasRoom(int64_t bytes, absl::Duration now) {
  const int64_t short_bytes =
      options_.marks.ShortBytes(host_used_bytes(), bytes, options_.host_bytes);
  if (short_bytes == 0) return true;
  for (const EntryId id : directory_.host_policy().PickVictims(
           short_bytes, [this](EntryId id) { return MayLeaveHost(id) && !NeedsWriting(id); })) {
    if (IsLastOfItsChain(id)) DropHost(id, Cause::kRoom, now);
  }
  return options_.marks.ShortBytes(host_used_bytes(), bytes, options_.host_bytes) == 0;
}

int64_t SimStore::excess_bytes() const {
  return options_.marks.ExcessBytes(host_used_bytes(), options_.host_bytes);
}

void SimStore::Tick(absl::Duration now) {
  std::vector<LeasedPage> released;
  leases_.Expire(now, released);
  Unlease(released);
  int64_t need_bytes = excess_bytes();
  for (const EntryId id : demoting_) need_bytes -= directory_.at(id).host->bytes();
  if (need_bytes <= 0) return;
  const std::vector<EntryId> victims =
      directory_.host_policy().PickVictims(need_bytes, [this](EntryId id) {
        const DirectoryEntry& entry = directory_.at(id);
        return MayLeaveHost(id) ||
               (entry.host.use_count() <= kOurReferences && !demoting_.contains(id));
      });
  const bool beyond_hard = options_.marks.ShortBytes(host_used_bytes(), 0, options_.host_bytes) > 0;
  for (const EntryId id : victims) {
    const DirectoryEntry& entry = directory_.at(id);
    const bool leaf = directory_.host_policy().child_count(id) == 0;
    if (!NeedsWriting(id)) {
      if (IsLastOfItsChain(id)) DropHost(id, Cause::kRoom, now);
      continue;
    }
    const bool admitted =
        !options_.admit_to_ssd_twice_used || used_twice_[static_cast<size_t>(KeyOf(id))] > 1;
    if (!admitted && !entry.on_ssd()) {
      if (leaf && entry.child_count == 0) DropHost(id, Cause::kRoom, now);
      continue;
    }
    if (QueueWrite(id)) {
      demoting_.insert(id);
      continue;
    }
    if (!beyond_hard) return;
    if (leaf && entry.child_count == 0) DropHost(id, Cause::kRoom, now);
  }
}

// ---- Clients ------------------------------------------------------------------------------------

SimStore::Pushed SimStore::Push(int key, int form, bool keep_at_least_q8, absl::Duration now) {
  const KnownPage& page = universe_.at(key);
  if (!HasRoom(page.bytes(form), now)) return Pushed::kNoRoom;
  EntryId parent = kNoEntry;
  if (page.parent != kNoKey) {
    parent = directory_.Find(universe_.at(page.parent).record, page.scope);
    if (parent == kNoEntry) return Pushed::kNoParent;
  }
  EntryId id = directory_.Find(page.record);
  const bool replaces_quarantined = id != kNoEntry && directory_.at(id).quarantined;
  if (replaces_quarantined) {
    DropEntry(id, Cause::kBroken, now);
    id = kNoEntry;
  }
  if (id == kNoEntry) {
    const auto added = directory_.AddHost(page.forms[static_cast<size_t>(form)], now);
    PAGODA_CHECK(added.ok());
    used_twice_[static_cast<size_t>(key)] = 0;
    witness_.OnCopy(Tier::kHost, key, form);
    if (parent != kNoEntry) scheduler_.OnCommit(PageIdOf(parent), PageIdOf(*added), now);
    return replaces_quarantined ? Pushed::kReplaced : Pushed::kStored;
  }
  const int stored = directory_.at(id).host != nullptr ? HostFormOf(id) : SsdFormOf(id);
  const bool better_fidelity = FidelityIndexOf(form) < FidelityIndexOf(stored);
  const bool too_coarse = keep_at_least_q8 && FidelityIndexOf(form) == FidelityIndexOf(stored) &&
                          PrecisionIndexOf(stored) > 1 &&
                          PrecisionIndexOf(form) < PrecisionIndexOf(stored);
  if (!better_fidelity && !too_coarse) return Pushed::kAlreadyStored;
  ForgetDemotion(id);
  AddHost(id, form, /*dirty=*/true);
  directory_.Touch(id, now);
  if (directory_.at(id).on_ssd()) QueueWrite(id);
  return Pushed::kReplaced;
}

bool SimStore::Encode(int key) {
  const EntryId id = Find(key);
  if (id == kNoEntry || directory_.at(id).host == nullptr || directory_.at(id).quarantined) {
    return false;
  }
  const int form = HostFormOf(id);
  if (PrecisionIndexOf(form) == 2) return false;
  ForgetDemotion(id);
  AddHost(id, form + 1, /*dirty=*/true);
  if (directory_.at(id).on_ssd()) QueueWrite(id);
  return true;
}

SimAnswer SimStore::Lookup(const std::vector<int>& keys, int scope_index, int precision_worst,
                           int fidelity_worst, const std::string& session,
                           const std::string& request, absl::Duration now) {
  SimAnswer answer;
  std::vector<EntryId> ids;
  std::vector<prefetch::UsedPage> used;
  for (const int key : keys) {
    const EntryId id = directory_.Find(universe_.at(key).record, universe_.scope(scope_index));
    if (id == kNoEntry || directory_.at(id).quarantined) break;
    const bool ready = directory_.at(id).host != nullptr;
    const int form = ready ? HostFormOf(id) : SsdFormOf(id);
    if (PrecisionIndexOf(form) > precision_worst || FidelityIndexOf(form) > fidelity_worst) break;
    answer.pages.push_back({key, ready});
    ids.push_back(id);
    used.push_back({PageIdOf(id), !ready && !loads_.contains(key)});
  }
  for (size_t i = ids.size(); i-- > 0;) {
    directory_.Touch(ids[i], now);
    uint8_t& uses = used_twice_[static_cast<size_t>(keys[i])];
    uses = static_cast<uint8_t>(std::min(uses + 1, 2));
  }
  scheduler_.OnLookup(used, static_cast<uint64_t>(scope_index) + 1,
                      static_cast<uint32_t>(scope_index), now);
  if (session.empty()) return answer;
  std::vector<LeasedPage> released;
  if (ids.empty()) {
    leases_.ReleaseRequest(session, request, released);
    Unlease(released);
    return answer;
  }
  Lease lease;
  lease.session_id = session;
  lease.request_id = request;
  lease.scope = universe_.scope(scope_index);
  for (const EntryId id : ids) {
    lease.pages.push_back(
        {directory_.at(id).record, directory_.at(id).incarnation, directory_.at(id).host});
  }
  const auto granted = leases_.Grant(std::move(lease), now, options_.lease_ttl, released);
  if (!granted.ok()) return answer;
  for (const EntryId id : ids) directory_.AddLease(id);
  Unlease(released);
  answer.lease = *granted;
  return answer;
}

absl::StatusOr<HostPagePtr> SimStore::GetLeased(const std::string& session, LeaseId id, int key,
                                                absl::Duration now) {
  Lease* lease = leases_.Find(session, id, now);
  if (lease == nullptr) return absl::NotFoundError("lease: ended");
  LeasedPage* leased = lease->FindPage(universe_.at(key).record);
  if (leased == nullptr) return absl::NotFoundError("lease: does not name the page");
  if (leased->page != nullptr) return leased->page;
  const EntryId entry = directory_.Find(universe_.at(key).record, lease->scope);
  if (entry == kNoEntry || directory_.at(entry).incarnation != leased->incarnation ||
      directory_.at(entry).quarantined) {
    return absl::NotFoundError("page: dropped meanwhile");
  }
  leased->page = directory_.at(entry).host;
  return leased->page;
}

bool SimStore::Renew(const std::string& session, LeaseId id, absl::Duration now) {
  return leases_.Renew(session, id, now, options_.lease_ttl).ok();
}

void SimStore::Release(const std::string& session, LeaseId id) {
  std::vector<LeasedPage> released;
  leases_.Release(session, id, released);
  Unlease(released);
}

void SimStore::ReleaseSession(const std::string& session) {
  std::vector<LeasedPage> released;
  leases_.ReleaseSession(session, released);
  Unlease(released);
}

void SimStore::Unlease(const std::vector<LeasedPage>& released) {
  for (const LeasedPage& leased : released) {
    const EntryId id = directory_.Find(leased.record);
    if (id != kNoEntry && directory_.at(id).incarnation == leased.incarnation) {
      directory_.RemoveLease(id);
    }
  }
}

void SimStore::Remove(int key, absl::Duration now) {
  const EntryId root = Find(key);
  if (root == kNoEntry) return;
  SubtreeWalk walk;
  walk.Scan(directory_, 1, directory_.slot_count(), [root](EntryId id) { return id == root; });
  for (const SubtreeWalk::Found& found : walk.Take()) DropEntry(found.id, Cause::kAsked, now);
}

void SimStore::Pin(int key, bool pinned) {
  const EntryId id = Find(key);
  if (id != kNoEntry) directory_.SetPinned(id, pinned);
}

void SimStore::ReportAttention(int key, double mass) {
  const EntryId id = Find(key);
  if (id == kNoEntry) return;
  if (directory_.at(id).host != nullptr) directory_.host_policy().ReportAttention(id, mass);
  if (directory_.at(id).on_ssd()) directory_.ssd_policy().ReportAttention(id, mass);
}

void SimStore::Quarantine(int key, absl::Duration) {
  const EntryId id = Find(key);
  if (id == kNoEntry) return;
  directory_.SetQuarantined(id, true);
  if (!directory_.at(id).on_ssd()) return;
  disk_.Delete(key);
  DropSsd(id, Cause::kBroken);
}

// ---- The disk -----------------------------------------------------------------------------------

bool SimStore::QueueWrite(EntryId id) {
  if (directory_.at(id).queued) return true;
  if (write_count() >= options_.writes_max) return false;
  writes_.push_back({KeyOf(id), directory_.at(id).incarnation});
  directory_.SetQueued(id, true);
  return true;
}

bool SimStore::MakeSsdRoom(int64_t bytes) {
  const int64_t used_bytes = directory_.ssd_bytes();
  const int64_t need_bytes =
      std::max(options_.marks.ShortBytes(used_bytes, bytes, options_.ssd_bytes),
               options_.marks.ExcessBytes(used_bytes + bytes, options_.ssd_bytes));
  if (need_bytes > 0) {
    for (const EntryId id : directory_.ssd_policy().PickVictims(need_bytes, [this](EntryId id) {
           const DirectoryEntry& entry = directory_.at(id);
           if (loads_.contains(KeyOf(id))) return false;
           return entry.host != nullptr ||
                  entry.child_count == directory_.ssd_policy().child_count(id);
         })) {
      // As in IsLastOfItsChain: followers may have stayed in memory, and then on SSD too.
      const DirectoryEntry& entry = directory_.at(id);
      const bool followed = entry.host == nullptr && entry.child_count > 0;
      if (followed || directory_.ssd_policy().child_count(id) > 0) continue;
      disk_.Delete(KeyOf(id));
      DropSsd(id, Cause::kRoom);
    }
  }
  return options_.marks.ShortBytes(directory_.ssd_bytes(), bytes, options_.ssd_bytes) == 0;
}

bool SimStore::StartWrite(absl::Duration) {
  while (!writing_.has_value() && !writes_.empty()) {
    const Write write = writes_.front();
    writes_.pop_front();
    const EntryId id = Find(write.key);
    if (id == kNoEntry || directory_.at(id).incarnation != write.incarnation) continue;
    if (directory_.at(id).host == nullptr || directory_.at(id).quarantined) {
      directory_.SetQueued(id, false);
      continue;
    }
    writing_ = Writing{write, directory_.at(id).host};
  }
  return writing_.has_value();
}

void SimStore::EndWrite(bool ok, absl::Duration now) {
  PAGODA_CHECK(writing_.has_value());
  const Writing writing = *std::move(writing_);
  writing_.reset();
  const int key = writing.what.key;
  // The page itself is no victim here while it is being written: its host copy stays.
  ok = MakeSsdRoom(writing.page->bytes()) && ok;
  const EntryId id = Find(key);
  // Removed meanwhile: what reached the disk is deleted behind us.
  if (id == kNoEntry || directory_.at(id).incarnation != writing.what.incarnation) return;
  FinishWrite(id, writing.page, ok, now);
}

void SimStore::FinishWrite(EntryId id, const HostPagePtr& page, bool ok, absl::Duration now) {
  const int key = KeyOf(id);
  directory_.SetQueued(id, false);
  const bool demote = demoting_.contains(id);
  ForgetDemotion(id);
  if (directory_.at(id).quarantined) return;
  if (ok) {
    const int form = universe_.FormOfPage(key, page);
    disk_.Put(key, form);
    directory_.SetSsd(id,
                      {page->bytes(), page->planes(), page->precision(), page->header().fidelity});
    witness_.OnCopy(Tier::kSsd, key, form);
    if (directory_.at(id).host != page) {
      if (directory_.at(id).host != nullptr) QueueWrite(id);
      return;
    }
    directory_.SetDirty(id, false);
  }
  const DirectoryEntry& entry = directory_.at(id);
  if (!demote || entry.host != page) return;
  const bool wanted = entry.locked() || entry.host.use_count() > kOurReferences + 1 ||
                      directory_.host_policy().child_count(id) > 0;
  if (!wanted && (ok || entry.on_ssd() || entry.child_count == 0)) {
    DropHost(id, Cause::kRoom, now);
  }
}

bool SimStore::Load(int key, absl::Duration) {
  const EntryId id = Find(key);
  if (id == kNoEntry || directory_.at(id).quarantined) return false;
  if (directory_.at(id).host != nullptr) return true;
  const auto [it, first] = loads_.try_emplace(
      key, LoadState{directory_.at(id).incarnation, directory_.at(id).ssd_version, 0, false, true,
                     prefetch::kNoPage});
  it->second.demanded = true;
  if (first) load_order_.push_back(key);
  return true;
}

int SimStore::StartLoad() {
  const int64_t under_way = std::count_if(loads_.begin(), loads_.end(),
                                          [](const auto& load) { return load.second.under_way; });
  if (under_way >= options_.loads_max || load_order_.empty()) return kNoKey;
  const int key = load_order_.front();
  load_order_.pop_front();
  LoadState& load = loads_.at(key);
  load.under_way = true;
  if (const EntryId id = Find(key); id != kNoEntry) {
    load.incarnation = directory_.at(id).incarnation;
    load.ssd_version = directory_.at(id).ssd_version;
  }
  return key;
}

void SimStore::EndOfLoad(int key, bool ok) {
  const auto it = loads_.find(key);
  PAGODA_CHECK(it != loads_.end());
  reserved_bytes_ -= it->second.reserved_bytes;
  if (it->second.prefetched != prefetch::kNoPage) scheduler_.OnLoaded(it->second.prefetched, ok);
  loads_.erase(it);
}

void SimStore::EndLoad(int key, Read read, absl::Duration now) {
  LoadState& load = loads_.at(key);
  PAGODA_CHECK(load.under_way);
  EntryId id = Find(key);
  if (id == kNoEntry) return EndOfLoad(key, false);
  if (directory_.at(id).host != nullptr) return EndOfLoad(key, true);
  if (directory_.at(id).incarnation != load.incarnation ||
      directory_.at(id).ssd_version != load.ssd_version) {
    load.under_way = false;  // lost a race: once more
    load_order_.push_back(key);
    return;
  }
  if (read == Read::kBroken) {
    DropEntry(id, Cause::kBroken, now);
    return EndOfLoad(key, false);
  }
  const int form = SsdFormOf(id);
  const int64_t bytes = universe_.at(key).bytes(form);
  // Room that prefetch keeps is the page's own; only a request may take more.
  reserved_bytes_ -= std::exchange(load.reserved_bytes, 0);
  const bool room = options_.marks.ShortBytes(host_used_bytes(), bytes, options_.host_bytes) == 0 ||
                    (load.demanded && HasRoom(bytes, now));
  id = Find(key);
  const bool ok = read == Read::kOk && room;
  if (ok) AddHost(id, form, /*dirty=*/false);
  EndOfLoad(key, ok);
}

// ---- Prefetch -----------------------------------------------------------------------------------

prefetch::Where SimStore::WhereIs(prefetch::PageId page) const {
  const EntryId id = EntryOf(page);
  if (id == kNoEntry || directory_.at(id).quarantined) return prefetch::Where::kGone;
  if (directory_.at(id).host != nullptr) return prefetch::Where::kHost;
  return loads_.contains(KeyOf(id)) ? prefetch::Where::kLoading : prefetch::Where::kSsd;
}

int64_t SimStore::BytesOf(prefetch::PageId page) const {
  const EntryId id = EntryOf(page);
  return universe_.at(KeyOf(id)).bytes(SsdFormOf(id));
}

prefetch::PageId SimStore::ParentOf(prefetch::PageId page) const {
  const EntryId id = EntryOf(page);
  if (id == kNoEntry) return prefetch::kNoPage;
  const EntryId parent = directory_.at(id).parent;
  return parent == kNoEntry || !directory_.at(parent).alive() ? prefetch::kNoPage
                                                              : PageIdOf(parent);
}

std::optional<int64_t> SimStore::MakeWay(int64_t bytes,
                                         absl::FunctionRef<bool(prefetch::PageId)> is_colder) {
  const auto ceiling = static_cast<int64_t>((options_.marks.start + options_.marks.stop) / 2 *
                                            static_cast<double>(options_.host_bytes));
  if (host_used_bytes() + bytes <= ceiling) {
    reserved_bytes_ += bytes;
    return 0;
  }
  const std::vector<EntryId> victims =
      directory_.host_policy().PickVictims(bytes, [this](EntryId id) {
        return MayLeaveHost(id) && !NeedsWriting(id) && directory_.at(id).on_ssd();
      });
  int64_t freed_bytes = 0;
  for (const EntryId id : victims) {
    if (!is_colder(PageIdOf(id))) return std::nullopt;
    freed_bytes += directory_.at(id).host->bytes();
  }
  if (freed_bytes < bytes) return std::nullopt;
  for (const EntryId id : victims) DropHost(id, Cause::kRoom, poll_now_);
  reserved_bytes_ += bytes;
  return static_cast<int64_t>(victims.size());
}

void SimStore::Prefetch(absl::Duration now) {
  poll_now_ = now;
  for (const prefetch::Action& action : scheduler_.Poll(now, *this)) {
    const EntryId id = EntryOf(action.page);
    const int key = KeyOf(id);
    loads_.emplace(key, LoadState{directory_.at(id).incarnation, directory_.at(id).ssd_version,
                                  action.bytes, false, false, action.page});
    load_order_.push_back(key);
  }
}

void SimStore::Hint(const std::vector<int>& keys, int scope_index, uint64_t owner,
                    absl::Duration deadline, absl::Duration now) {
  for (const int key : keys) {
    const EntryId id = directory_.Find(universe_.at(key).record, universe_.scope(scope_index));
    if (id == kNoEntry) return;
    if (directory_.at(id).host != nullptr) continue;
    scheduler_.Ask({PageIdOf(id), prefetch::Source::kHint, deadline, deadline, owner}, now);
  }
}

}  // namespace pagoda::simulation
