// Directory: what needs a walk over all entries, and what is told to others.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/directory.h"
#include "storage/subtree_walk.h"

namespace pagoda {

std::vector<EntryId> Directory::Unreachable() const {
  SubtreeWalk walk;
  walk.Scan(*this, 1, slot_count(), [this](EntryId id) { return !slots_[id].alive(); });
  std::vector<EntryId> ids;
  for (const SubtreeWalk::Found& found : walk.Take()) ids.push_back(found.id);
  return ids;
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
  info.uses = UsesOf(id, now);
  info.lease_count = static_cast<int32_t>(entry.lease_count);
  info.idle = absl::Seconds(absl::ToInt64Seconds(now) - entry.last_use_seconds);
  info.created_unix_seconds = entry.created_unix_seconds;
  return info;
}

int64_t Directory::HostPagesAbove(Precision above, Precision most) const {
  int64_t count = 0;
  for (const auto& [precision, pages] : host_sums_.by_precision) {
    if (precision > above && precision <= most) count += pages;
  }
  return count;
}

void Directory::FillStats(StoreStats& stats) const {
  stats.host.page_bytes = host_policy_->bytes();
  stats.host.pinned_bytes = host_policy_->locked_bytes();
  stats.host.page_count = host_sums_.page_count;
  stats.host.pages_by_precision = host_sums_.by_precision;
  stats.ssd.page_bytes = ssd_policy_->bytes();
  stats.ssd.pinned_bytes = ssd_policy_->locked_bytes();
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

absl::Status Directory::CheckSums() const {
  StoreStats found;
  std::vector<ScopeStats> scopes(scopes_.size());
  std::vector<PusherStats> pushers(pushers_.size());
  for (EntryId id = 1; id < slot_count(); ++id) {
    const DirectoryEntry& entry = slots_[id];
    if (!entry.alive()) continue;
    const int64_t host_bytes = entry.host != nullptr ? entry.host->bytes() : 0;
    ScopeStats& scope = scopes[traits_of(id).scope_index];
    PusherStats& pusher = pushers[traits_of(id).pusher_index];
    found.host.page_bytes += host_bytes;
    found.ssd.page_bytes += entry.ssd_bytes();
    found.host.page_count += entry.host != nullptr ? 1 : 0;
    found.ssd.page_count += entry.on_ssd() ? 1 : 0;
    ++found.page_count;
    found.dirty_page_count += entry.dirty ? 1 : 0;
    found.leased_page_count += entry.lease_count > 0 ? 1 : 0;
    found.pinned_page_count += entry.pinned ? 1 : 0;
    ++scope.page_count;
    scope.host_bytes += host_bytes;
    scope.ssd_bytes += entry.ssd_bytes();
    ++pusher.page_count;
    pusher.host_bytes += host_bytes;
    pusher.ssd_bytes += entry.ssd_bytes();
  }
  const auto same = [](const auto& a, const auto& b) {
    return a.page_count == b.page_count && a.host_bytes == b.host_bytes &&
           a.ssd_bytes == b.ssd_bytes;
  };
  const bool sums_agree =
      found.host.page_bytes == host_bytes() && found.ssd.page_bytes == ssd_bytes() &&
      found.host.page_count == host_sums_.page_count &&
      found.ssd.page_count == ssd_sums_.page_count && found.page_count == page_count_ &&
      found.dirty_page_count == dirty_count_ && found.leased_page_count == leased_count_ &&
      found.pinned_page_count == pinned_count_;
  if (sums_agree && std::equal(scopes.begin(), scopes.end(), scopes_.begin(), same) &&
      std::equal(pushers.begin(), pushers.end(), pushers_.begin(), same)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrFormat(
      "directory: %d pages, %d bytes in memory, %d on SSD found; %d, %d, %d counted",
      found.page_count, found.host.page_bytes, found.ssd.page_bytes, page_count_, host_bytes(),
      ssd_bytes()));
}

int64_t Directory::memory_bytes() const {
  constexpr int64_t kIndexSlotBytes = sizeof(EntryId) + 1;  // and its control byte
  const int64_t index_slots = static_cast<int64_t>(index_.capacity()) + 1;
  return slots_.memory_bytes() + index_slots * kIndexSlotBytes +
         static_cast<int64_t>(free_slots_.capacity() * sizeof(EntryId)) + traits_.memory_bytes() +
         host_policy_->memory_bytes() + ssd_policy_->memory_bytes();
}

}  // namespace pagoda
