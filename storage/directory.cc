#include "storage/directory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"
#include "storage/policy/lru_policy.h"
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
      host_policy_(std::make_unique<policy::LruPolicy>()),
      ssd_policy_(std::make_unique<policy::LruPolicy>()),
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

uint64_t Directory::fingerprint_of(EntryId id) const {
  const RecordKey& record = slots_[id].record;  // its key is a hash already
  uint64_t head;
  std::memcpy(&head, record.key.bytes.data(), sizeof(head));
  return head ^
         (uint64_t{record.group} << 32 | uint64_t{record.head_begin} << 16 | record.head_count);
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
    host_policy_->Resize(id, page->bytes());
  } else {
    host_policy_->Insert({id, entry.parent, page->bytes(), fingerprint_of(id)});
    if (entry.locked()) host_policy_->Lock(id);
  }
  PageTraits traits = traits_of(id);
  traits.backend_tag = page->header().backend_tag;
  SetTraits(id, traits);
  entry.content_head = ContentHead(HeadOf(page->header().content_hash));
  Count(Tier::kHost, id, CopyOf(*page), +1);
  // In this order: a moved page shares slabs with the old one.
  if (old != nullptr) old->SetUse(SlabUse::kLingering, kNoEntry);
  page->SetUse(SlabUse::kResident, id);
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
  host_policy_->Remove(id);
  Count(Tier::kHost, id, CopyOf(*old), -1);
  old->SetUse(SlabUse::kLingering, kNoEntry);
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
    ssd_policy_->Resize(id, copy.bytes);
  } else {
    ssd_policy_->Insert({id, entry.parent, copy.bytes, fingerprint_of(id)});
    if (entry.locked()) ssd_policy_->Lock(id);
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
  ssd_policy_->Remove(id);
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
  if (entry.host != nullptr) host_policy_->Touch(id);
  if (entry.on_ssd()) ssd_policy_->Touch(id);
}

void Directory::ReportAttention(EntryId id, double mass) {
  if (slots_[id].host != nullptr) host_policy_->ReportAttention(id, mass);
  if (slots_[id].on_ssd()) ssd_policy_->ReportAttention(id, mass);
}

uint8_t Directory::UsesOf(EntryId id, absl::Duration now) const {
  const DirectoryEntry& entry = slots_[id];
  return policy::DecayedUses(entry.uses, entry.last_use_seconds, WholeSeconds(now),
                             use_window_seconds_);
}

void Directory::ApplyLock(EntryId id) {
  const DirectoryEntry& entry = slots_[id];
  for (policy::EvictionPolicy* policy : {host_policy_.get(), ssd_policy_.get()}) {
    if (!policy->resident(id)) continue;
    if (entry.locked()) {
      policy->Lock(id);
    } else {
      policy->Unlock(id);
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

void Directory::SetHostPolicy(std::unique_ptr<policy::EvictionPolicy> policy) {
  Refill(*policy, *host_policy_);
  host_policy_ = std::move(policy);
}

void Directory::SetSsdPolicy(std::unique_ptr<policy::EvictionPolicy> policy) {
  Refill(*policy, *ssd_policy_);
  ssd_policy_ = std::move(policy);
}

void Directory::Refill(policy::EvictionPolicy& policy, const policy::EvictionPolicy& old) const {
  constexpr int kUsesTold = 15;  // more make no difference to any policy
  std::vector<EntryId> ids;
  ids.reserve(static_cast<size_t>(old.entry_count()));
  for (EntryId id = 1; id < slot_count(); ++id) {
    if (old.resident(id)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(), [this](EntryId a, EntryId b) {
    const uint32_t at_a = slots_[a].last_use_seconds;
    const uint32_t at_b = slots_[b].last_use_seconds;
    return at_a != at_b ? at_a < at_b : a > b;  // followers mostly have the greater ids
  });
  policy.set_capacity_bytes(old.capacity_bytes());
  for (const EntryId id : ids) {
    const DirectoryEntry& entry = slots_[id];
    policy.Insert({id, entry.parent, old.bytes_of(id), fingerprint_of(id)});
    for (int i = std::min<int>(entry.uses, kUsesTold); i > 0; --i) policy.Touch(id);
    if (entry.locked()) policy.Lock(id);
  }
}

}  // namespace pagoda
