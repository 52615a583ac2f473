#include "storage/directory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"
#include "storage/policy/use_count.h"

namespace pagoda {
namespace {

CopyInfo CopyOf(const HostPage& page) {
  return {page.bytes(), page.planes(), page.precision(), page.header().fidelity};
}

uint32_t WholeSeconds(absl::Duration duration) {
  return static_cast<uint32_t>(absl::ToInt64Seconds(duration));
}

uint32_t ContentHead(const ContentHashHead& hash) {
  uint32_t head;
  std::memcpy(&head, hash.data(), sizeof(head));
  return head;
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

Directory::Directory(absl::Duration use_window)
    : index_(0, SlotHash{this}, SlotEqual{this}),
      use_window_seconds_(std::max(1u, WholeSeconds(use_window))) {
  slots_.Resize(1);
}

CopyInfo Directory::ssd_copy_of(EntryId id) const {
  const PageTraits& traits = traits_of(id);
  return {slots_[id].ssd_bytes(), traits.ssd_planes, traits.ssd_precision, traits.ssd_fidelity};
}

CopyInfo Directory::best_copy_of(EntryId id) const {
  const HostPagePtr& host = slots_[id].host;
  return host != nullptr ? CopyOf(*host) : ssd_copy_of(id);
}

bool Directory::MayBeContent(EntryId id, const ContentHash& content) const {
  return slots_[id].content_head == ContentHead(HeadOf(content));
}

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
    id = slot_count();
    slots_.Resize(size_t{id} + 1);
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
  if (record.bytes <= 0 || record.bytes % kSegmentAlignBytes != 0 ||
      record.bytes / kSegmentAlignBytes > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "page: of %d bytes; must be a positive multiple of 4096, below 16 TiB", record.bytes));
  }
  PAGODA_ASSIGN_OR_RETURN(const uint16_t scope,
                          Intern(scope_index_, scopes_, record.scope,
                                 ScopeStats{record.scope, record.scope_kind, 0, 0, 0}, "scopes"));
  PAGODA_ASSIGN_OR_RETURN(
      const uint16_t identity,
      Intern(identity_index_, identities_, record.identity, record.identity, "identities"));
  PAGODA_ASSIGN_OR_RETURN(const uint16_t pusher,
                          Intern(pusher_index_, pushers_, record.pusher,
                                 PusherStats{record.pusher, 0, 0, 0}, "pushers"));
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
  PageTraits traits;
  traits.scope_index = scope;
  traits.identity_index = identity;
  traits.pusher_index = pusher;
  traits.layer_count = record.layer_count;
  traits.page_tokens = record.page_tokens;
  traits.backend_tag = record.backend_tag;
  entry.traits = traits_.Acquire(traits);
  // Wraps after 2^32 pages: long after every lease and load that remembers an old one has ended.
  if (next_incarnation_ == 0) ++next_incarnation_;
  entry.incarnation = next_incarnation_++;
  entry.base_position = record.base_position;
  entry.content_head = ContentHead(record.content_hash);
  entry.parent = parent;
  entry.last_use_seconds = WholeSeconds(now);
  entry.created_unix_seconds = static_cast<uint32_t>(record.created_unix_seconds);
  entry.parent_is_root = record.parent_is_root;
  ++page_count_;
  ++scopes_[scope].page_count;
  ++pushers_[pusher].page_count;
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

void Directory::SetTraits(EntryId id, const PageTraits& traits) {
  if (traits_of(id) == traits) return;
  const InternId old = slots_[id].traits;
  slots_[id].traits = traits_.Acquire(traits);
  traits_.Release(old);
}

void Directory::Count(Tier tier, EntryId id, const CopyInfo& copy, int sign) {
  const PageTraits& traits = traits_of(id);
  const int64_t bytes = sign * copy.bytes;
  ScopeStats& scope = scopes_[traits.scope_index];
  PusherStats& pusher = pushers_[traits.pusher_index];
  if (tier == Tier::kHost) {
    host_sums_.Add(copy, sign);
    scope.host_bytes += bytes;
    pusher.host_bytes += bytes;
  } else {
    ssd_sums_.Add(copy, sign);
    scope.ssd_bytes += bytes;
    pusher.ssd_bytes += bytes;
  }
}

HostPagePtr Directory::SetHost(EntryId id, HostPagePtr page, bool dirty) {
  DirectoryEntry& entry = slots_[id];
  PAGODA_CHECK(entry.alive());
  HostPagePtr old = std::move(entry.host);
  if (old != nullptr) {
    Count(Tier::kHost, id, CopyOf(*old), -1);
    host_policy_.Resize(id, page->bytes());
  } else {
    host_policy_.Insert({id, entry.parent, page->bytes()});
    if (entry.locked()) host_policy_.Lock(id);
  }
  PageTraits traits = traits_of(id);
  traits.backend_tag = page->header().backend_tag;
  SetTraits(id, traits);
  entry.content_head = ContentHead(HeadOf(page->header().content_hash));
  Count(Tier::kHost, id, CopyOf(*page), +1);
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
  Count(Tier::kHost, id, CopyOf(*old), -1);
  EraseIfEmpty(id);
  return old;
}

void Directory::SetSsd(EntryId id, const CopyInfo& copy) {
  DirectoryEntry& entry = slots_[id];
  PAGODA_CHECK(entry.alive());
  PAGODA_CHECK(copy.bytes > 0);
  PAGODA_CHECK(copy.bytes % kSegmentAlignBytes == 0);
  if (entry.on_ssd()) {
    Count(Tier::kSsd, id, ssd_copy_of(id), -1);
    ssd_policy_.Resize(id, copy.bytes);
  } else {
    ssd_policy_.Insert({id, entry.parent, copy.bytes});
    if (entry.locked()) ssd_policy_.Lock(id);
  }
  PageTraits traits = traits_of(id);
  traits.ssd_planes = copy.planes;
  traits.ssd_precision = copy.precision;
  traits.ssd_fidelity = copy.fidelity;
  SetTraits(id, traits);
  entry.ssd_blocks = static_cast<uint32_t>(copy.bytes / kSegmentAlignBytes);
  ++entry.ssd_version;
  Count(Tier::kSsd, id, copy, +1);
}

void Directory::DropSsd(EntryId id) {
  DirectoryEntry& entry = slots_[id];
  PAGODA_CHECK(entry.on_ssd());
  ssd_policy_.Remove(id);
  Count(Tier::kSsd, id, ssd_copy_of(id), -1);
  entry.ssd_blocks = 0;
  ++entry.ssd_version;
  if (entry.host != nullptr) SetDirty(id, true);
  EraseIfEmpty(id);
}

void Directory::EraseIfEmpty(EntryId id) {
  DirectoryEntry& entry = slots_[id];
  if (entry.host != nullptr || entry.on_ssd()) return;
  --page_count_;
  --scopes_[traits_of(id).scope_index].page_count;
  --pushers_[traits_of(id).pusher_index].page_count;
  if (entry.lease_count > 0) --leased_count_;
  if (entry.pinned) --pinned_count_;
  const EntryId parent = std::exchange(entry.parent, kNoEntry);
  const uint32_t child_count = entry.child_count;
  const RecordKey record = entry.record;
  traits_.Release(entry.traits);
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
  const uint32_t now_seconds = WholeSeconds(now);
  entry.uses = policy::AddUse(entry.uses, entry.last_use_seconds, now_seconds, use_window_seconds_);
  entry.last_use_seconds = now_seconds;
  if (entry.host != nullptr) host_policy_.Touch(id);
  if (entry.on_ssd()) ssd_policy_.Touch(id);
}

uint8_t Directory::UsesOf(EntryId id, absl::Duration now) const {
  const DirectoryEntry& entry = slots_[id];
  return policy::DecayedUses(entry.uses, entry.last_use_seconds, WholeSeconds(now),
                             use_window_seconds_);
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
  const PageTraits& traits = traits_of(id);
  const CopyInfo best = best_copy_of(id);
  PageInfo info;
  info.record = entry.record;
  info.identity = identity_of(id);
  if (entry.parent != kNoEntry) info.parent = slots_[entry.parent].record.key;
  info.parent_is_root = entry.parent_is_root;
  info.scope = scope_of(id);
  info.scope_kind = scopes_[traits.scope_index].kind;
  info.pusher = pushers_[traits.pusher_index].pusher;
  info.page_tokens = traits.page_tokens;
  info.base_position = entry.base_position;
  info.layer_count = traits.layer_count;
  info.backend_tag = traits.backend_tag;
  info.fidelity = best.fidelity;
  info.precision = best.precision;
  info.planes = best.planes;
  info.in_host = entry.host != nullptr;
  info.on_ssd = entry.on_ssd();
  info.host_bytes = info.in_host ? entry.host->bytes() : 0;
  info.ssd_bytes = entry.ssd_bytes();
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
  for (const PusherStats& pusher : pushers_) {
    if (pusher.page_count > 0) stats.pushers.push_back(pusher);
  }
  stats.page_count = page_count_;
  stats.dirty_page_count = dirty_count_;
  stats.leased_page_count = leased_count_;
  stats.pinned_page_count = pinned_count_;
}

int64_t Directory::memory_bytes() const {
  constexpr int64_t kIndexSlotBytes = sizeof(EntryId) + 1;  // and its control byte
  const int64_t index_slots = static_cast<int64_t>(index_.capacity()) + 1;
  return slots_.memory_bytes() + index_slots * kIndexSlotBytes +
         static_cast<int64_t>(free_slots_.capacity() * sizeof(EntryId)) + traits_.memory_bytes() +
         host_policy_.memory_bytes() + ssd_policy_.memory_bytes();
}

}  // namespace pagoda
