#include "storage/directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

CopyInfo CopyOf(const HostPage& page) {
  return {page.bytes(), page.planes(), page.precision(), page.header().fidelity};
}

uint32_t WholeSeconds(absl::Duration duration) {
  return static_cast<uint32_t>(absl::ToInt64Seconds(duration));
}

// The number of a name, given when it is first seen.
template <typename Id, typename Name>
absl::StatusOr<uint16_t> Intern(absl::flat_hash_map<Id, uint16_t>& index, std::vector<Name>& names,
                                const Id& id, Name name, absl::string_view what) {
  const auto known = index.find(id);
  if (known != index.end()) return known->second;
  if (names.size() > UINT16_MAX) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("directory: more than %d %s", names.size(), what));
  }
  const auto number = static_cast<uint16_t>(names.size());
  names.push_back(std::move(name));
  index.emplace(id, number);
  return number;
}

}  // namespace

CopyInfo DirectoryEntry::best() const { return host != nullptr ? CopyOf(*host) : ssd; }

void Directory::Sums::Add(const CopyInfo& copy, int sign) {
  page_count += sign;
  by_precision[copy.precision] += sign;
}

EntryId Directory::Find(const RecordKey& key) const {
  const auto it = index_.find(key);
  return it != index_.end() && slots_[*it].alive() ? *it : kNoEntry;
}

EntryId Directory::Find(const RecordKey& key, const ScopeId& scope) const {
  const EntryId id = Find(key);
  return id != kNoEntry && scope_of(id) == scope ? id : kNoEntry;
}

EntryId Directory::TakeSlot(const RecordKey& key) {
  const auto it = index_.find(key);
  if (it != index_.end()) return *it;
  EntryId id;
  if (free_slots_.empty()) {
    id = static_cast<EntryId>(slots_.size());
    slots_.emplace_back();
  } else {
    id = free_slots_.back();
    free_slots_.pop_back();
  }
  slots_[id].record = key;
  index_.insert(id);
  return id;
}

bool Directory::IsAncestor(EntryId ancestor, EntryId id) const {
  for (; id != kNoEntry; id = slots_[id].parent) {
    if (id == ancestor) return true;
  }
  return false;
}

absl::StatusOr<EntryId> Directory::Enliven(const DirectoryRecord& record, absl::Duration now) {
  PAGODA_ASSIGN_OR_RETURN(const uint16_t scope,
                          Intern(scope_index_, scopes_, record.scope,
                                 ScopeStats{record.scope, record.scope_kind, 0, 0, 0}, "scopes"));
  PAGODA_ASSIGN_OR_RETURN(
      const uint16_t identity,
      Intern(identity_index_, identities_, record.identity, record.identity, "identities"));
  PAGODA_ASSIGN_OR_RETURN(const uint16_t pusher,
                          Intern(pusher_index_, pushers_, record.pusher, record.pusher, "pushers"));
  const EntryId id = TakeSlot(record.record);
  PAGODA_CHECK(!slots_[id].alive());
  EntryId parent = kNoEntry;
  if (!record.parent_is_root) {
    RecordKey parent_key = record.record;
    parent_key.key = record.parent;
    parent = TakeSlot(parent_key);
    // Only a ghost has followers already: a new slot cannot close a circle, but itself.
    if (parent == id || (slots_[id].child_count > 0 && IsAncestor(id, parent))) {
      FreeSlotIfUnused(parent);
      FreeSlotIfUnused(id);
      return absl::InvalidArgumentError("page: it would be its own ancestor");
    }
    ++slots_[parent].child_count;
  }
  DirectoryEntry& entry = slots_[id];
  entry.scope_index = scope;
  entry.identity_index = identity;
  entry.pusher_index = pusher;
  entry.layer_count = record.layer_count;
  // Wraps after 2^32 pages: long after every lease and load that remembers an old one has ended.
  if (next_incarnation_ == 0) ++next_incarnation_;
  entry.incarnation = next_incarnation_++;
  entry.base_position = record.base_position;
  entry.backend_tag = record.backend_tag;
  entry.content_hash = record.content_hash;
  entry.parent = parent;
  entry.page_tokens = record.page_tokens;
  entry.last_use_seconds = WholeSeconds(now);
  entry.created_unix_seconds = static_cast<uint32_t>(record.created_unix_seconds);
  entry.parent_is_root = record.parent_is_root;
  ++page_count_;
  ++scopes_[scope].page_count;
  return id;
}

absl::StatusOr<EntryId> Directory::AddHost(HostPagePtr page, absl::Duration now) {
  PAGODA_ASSIGN_OR_RETURN(const EntryId id, Enliven(DirectoryRecordOf(page->header()), now));
  SetHost(id, std::move(page), /*dirty=*/true);
  return id;
}

absl::StatusOr<EntryId> Directory::AddSsd(const DirectoryRecord& record, absl::Duration now) {
  PAGODA_ASSIGN_OR_RETURN(const EntryId id, Enliven(record, now));
  SetSsd(id, {record.bytes, record.planes, record.precision, record.fidelity});
  return id;
}

HostPagePtr Directory::SetHost(EntryId id, HostPagePtr page, bool dirty) {
  DirectoryEntry& entry = slots_[id];
  PAGODA_CHECK(entry.alive());
  HostPagePtr old = std::move(entry.host);
  if (old != nullptr) {
    host_sums_.Add(CopyOf(*old), -1);
    scopes_[entry.scope_index].host_bytes -= old->bytes();
    host_policy_.Resize(id, page->bytes());
  } else {
    host_policy_.Insert({id, entry.parent, page->bytes()});
    if (entry.locked()) host_policy_.Lock(id);
  }
  const DirectoryRecord record = DirectoryRecordOf(page->header());
  entry.backend_tag = record.backend_tag;
  entry.content_hash = record.content_hash;
  host_sums_.Add(CopyOf(*page), +1);
  scopes_[entry.scope_index].host_bytes += page->bytes();
  entry.host = std::move(page);
  SetDirty(id, dirty);
  return old;
}

HostPagePtr Directory::DropHost(EntryId id) {
  DirectoryEntry& entry = slots_[id];
  PAGODA_CHECK(entry.host != nullptr);
  SetDirty(id, false);
  HostPagePtr old = std::move(entry.host);
  entry.host = nullptr;
  host_policy_.Remove(id);
  host_sums_.Add(CopyOf(*old), -1);
  scopes_[entry.scope_index].host_bytes -= old->bytes();
  EraseIfEmpty(id);
  return old;
}

void Directory::SetSsd(EntryId id, const CopyInfo& copy) {
  DirectoryEntry& entry = slots_[id];
  PAGODA_CHECK(entry.alive());
  PAGODA_CHECK(copy.bytes > 0);
  if (entry.on_ssd()) {
    ssd_sums_.Add(entry.ssd, -1);
    scopes_[entry.scope_index].ssd_bytes -= entry.ssd.bytes;
    ssd_policy_.Resize(id, copy.bytes);
  } else {
    ssd_policy_.Insert({id, entry.parent, copy.bytes});
    if (entry.locked()) ssd_policy_.Lock(id);
  }
  entry.ssd = copy;
  ++entry.ssd_version;
  ssd_sums_.Add(copy, +1);
  scopes_[entry.scope_index].ssd_bytes += copy.bytes;
}

void Directory::DropSsd(EntryId id) {
  DirectoryEntry& entry = slots_[id];
  PAGODA_CHECK(entry.on_ssd());
  ssd_policy_.Remove(id);
  ssd_sums_.Add(entry.ssd, -1);
  scopes_[entry.scope_index].ssd_bytes -= entry.ssd.bytes;
  entry.ssd = CopyInfo{};
  ++entry.ssd_version;
  if (entry.host != nullptr) SetDirty(id, true);
  EraseIfEmpty(id);
}

void Directory::EraseIfEmpty(EntryId id) {
  DirectoryEntry& entry = slots_[id];
  if (entry.host != nullptr || entry.on_ssd()) return;
  --page_count_;
  --scopes_[entry.scope_index].page_count;
  if (entry.lease_count > 0) --leased_count_;
  if (entry.pinned) --pinned_count_;
  const EntryId parent = std::exchange(entry.parent, kNoEntry);
  const uint32_t child_count = entry.child_count;
  const RecordKey record = entry.record;
  entry = DirectoryEntry{};
  entry.record = record;
  entry.child_count = child_count;
  if (parent != kNoEntry) {
    PAGODA_CHECK(slots_[parent].child_count > 0);
    --slots_[parent].child_count;
    FreeSlotIfUnused(parent);
  }
  FreeSlotIfUnused(id);
}

void Directory::FreeSlotIfUnused(EntryId id) {
  DirectoryEntry& entry = slots_[id];
  const auto it = index_.find(entry.record);
  if (entry.alive() || entry.child_count > 0 || it == index_.end() || *it != id) return;
  index_.erase(it);
  entry = DirectoryEntry{};
  free_slots_.push_back(id);
}

void Directory::Touch(EntryId id, absl::Duration now) {
  DirectoryEntry& entry = slots_[id];
  entry.last_use_seconds = WholeSeconds(now);
  if (entry.host != nullptr) host_policy_.Touch(id);
  if (entry.on_ssd()) ssd_policy_.Touch(id);
}

void Directory::ApplyLock(EntryId id) {
  const DirectoryEntry& entry = slots_[id];
  for (policy::LruPolicy* lru : {&host_policy_, &ssd_policy_}) {
    if (!lru->resident(id)) continue;
    if (entry.locked()) {
      lru->Lock(id);
    } else {
      lru->Unlock(id);
    }
  }
}

void Directory::AddLease(EntryId id) {
  if (slots_[id].lease_count++ == 0) ++leased_count_;
  ApplyLock(id);
}

void Directory::RemoveLease(EntryId id) {
  PAGODA_CHECK(slots_[id].lease_count > 0);
  if (--slots_[id].lease_count == 0) --leased_count_;
  ApplyLock(id);
}

void Directory::SetPinned(EntryId id, bool pinned) {
  pinned_count_ += (pinned ? 1 : 0) - (slots_[id].pinned ? 1 : 0);
  slots_[id].pinned = pinned;
  ApplyLock(id);
}

void Directory::SetDirty(EntryId id, bool dirty) {
  DirectoryEntry& entry = slots_[id];
  dirty_count_ += (dirty ? 1 : 0) - (entry.dirty ? 1 : 0);
  entry.dirty = dirty;
}

std::vector<EntryId> Directory::Marked(absl::FunctionRef<bool(EntryId)> marks) const {
  // A verdict is inherited from the parent. 0: not judged yet.
  constexpr uint8_t kNo = 1;
  constexpr uint8_t kYes = 2;
  std::vector<uint8_t> verdicts(slots_.size(), 0);
  std::vector<uint32_t> depths(slots_.size(), 0);
  std::vector<EntryId> path;
  std::vector<EntryId> marked;
  for (EntryId start = 1; start < slot_count(); ++start) {
    if (!slots_[start].alive()) continue;
    EntryId id = start;
    for (; id != kNoEntry && verdicts[id] == 0; id = slots_[id].parent) path.push_back(id);
    uint8_t inherited = id == kNoEntry ? kNo : verdicts[id];
    uint32_t depth = id == kNoEntry ? 0 : depths[id] + 1;
    for (; !path.empty(); path.pop_back()) {
      const EntryId at = path.back();
      if (inherited == kNo && marks(at)) inherited = kYes;
      verdicts[at] = inherited;
      depths[at] = depth++;
      if (inherited == kYes && slots_[at].alive()) marked.push_back(at);
    }
  }
  std::stable_sort(marked.begin(), marked.end(),
                   [&](EntryId a, EntryId b) { return depths[a] > depths[b]; });
  return marked;
}

std::vector<EntryId> Directory::Subtrees(absl::FunctionRef<bool(EntryId)> matches) const {
  return Marked([&](EntryId id) { return slots_[id].alive() && matches(id); });
}

std::vector<EntryId> Directory::Unreachable() const {
  return Marked([&](EntryId id) { return !slots_[id].alive(); });
}

PageInfo Directory::InfoOf(EntryId id, absl::Duration now) const {
  const DirectoryEntry& entry = slots_[id];
  const CopyInfo best = entry.best();
  PageInfo info;
  info.record = entry.record;
  info.identity = identity_of(id);
  if (entry.parent != kNoEntry) info.parent = slots_[entry.parent].record.key;
  info.parent_is_root = entry.parent_is_root;
  info.scope = scope_of(id);
  info.scope_kind = scopes_[entry.scope_index].kind;
  info.pusher = pushers_[entry.pusher_index];
  info.page_tokens = entry.page_tokens;
  info.base_position = entry.base_position;
  info.layer_count = entry.layer_count;
  info.backend_tag = entry.backend_tag;
  info.fidelity = best.fidelity;
  info.precision = best.precision;
  info.planes = best.planes;
  info.in_host = entry.host != nullptr;
  info.on_ssd = entry.on_ssd();
  info.host_bytes = info.in_host ? entry.host->bytes() : 0;
  info.ssd_bytes = entry.ssd.bytes;
  info.dirty = entry.dirty;
  info.pinned = entry.pinned;
  info.quarantined = entry.quarantined;
  info.lease_count = static_cast<int32_t>(entry.lease_count);
  info.idle = absl::Seconds(int64_t{WholeSeconds(now)} - entry.last_use_seconds);
  info.created_unix_seconds = entry.created_unix_seconds;
  return info;
}

void Directory::FillStats(StoreStats& stats) const {
  stats.host.page_bytes = host_policy_.bytes();
  stats.host.pinned_bytes = host_policy_.locked_bytes();
  stats.host.page_count = host_sums_.page_count;
  stats.host.pages_by_precision = host_sums_.by_precision;
  stats.ssd.page_bytes = ssd_policy_.bytes();
  stats.ssd.pinned_bytes = ssd_policy_.locked_bytes();
  stats.ssd.page_count = ssd_sums_.page_count;
  stats.ssd.pages_by_precision = ssd_sums_.by_precision;
  for (const ScopeStats& scope : scopes_) {
    if (scope.page_count > 0) stats.scopes.push_back(scope);
  }
  stats.page_count = page_count_;
  stats.dirty_page_count = dirty_count_;
  stats.leased_page_count = leased_count_;
  stats.pinned_page_count = pinned_count_;
}

}  // namespace pagoda
