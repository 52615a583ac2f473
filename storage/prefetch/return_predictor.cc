#include "storage/prefetch/return_predictor.h"

#include <algorithm>
#include <tuple>

#include "storage/base/check.h"

namespace pagoda::prefetch {

int64_t ReturnPredictor::gap_count(uint32_t tenant) const {
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? 0 : it->second.gaps.count();
}

void ReturnPredictor::OnLookup(uint32_t tenant, absl::Span<const PageId> chain,
                               absl::Duration now) {
  if (chain.empty()) return;
  if (!tenants_.contains(tenant) && static_cast<int64_t>(tenants_.size()) >= options_.tenants_max) {
    return;
  }
  const size_t searched = std::min(chain.size(), static_cast<size_t>(options_.tail_search_max));
  for (size_t i = 0; i < searched; ++i) {
    const PageId page = chain[chain.size() - 1 - i];
    if (!conversations_.contains(page)) continue;
    const Conversation returned = Remove(page);
    const absl::Duration gap = now - returned.last;
    if (returned.tenant == tenant && gap >= options_.turn_min) tenants_[tenant].gaps.Add(gap);
    break;
  }
  Insert(chain.back(), tenant, now);
}

void ReturnPredictor::OnCommit(PageId parent, PageId page, absl::Duration now) {
  const auto it = conversations_.find(parent);
  if (it == conversations_.end() || conversations_.contains(page)) return;
  const uint32_t tenant = it->second.tenant;
  Remove(parent);
  Insert(page, tenant, now);
}

std::vector<ReturnPredictor::Due> ReturnPredictor::TakeDue(absl::Duration now) {
  std::vector<Due> due;
  for (auto& [number, tenant] : tenants_) {
    if (tenant.gaps.count() < options_.gaps_min) continue;
    const absl::Duration low = tenant.gaps.LowerEdge(options_.low);
    const absl::Duration high = tenant.gaps.UpperEdge(options_.high);
    while (!tenant.waiting.empty() && tenant.waiting.begin()->first + low <= now) {
      const auto [last, tail] = *tenant.waiting.begin();
      tenant.waiting.erase(tenant.waiting.begin());
      conversations_.at(tail).predicted = true;
      if (last + high > now) due.push_back({tail, last + high});
    }
  }
  // In an order that does not depend on the hash table's.
  std::sort(due.begin(), due.end(), [](const Due& a, const Due& b) {
    return std::tie(a.give_up, a.tail) < std::tie(b.give_up, b.tail);
  });
  return due;
}

void ReturnPredictor::Insert(PageId tail, uint32_t tenant, absl::Duration now) {
  PAGODA_CHECK(tail != kNoPage);
  if (conversation_count() >= options_.conversations_max) Remove(by_age_.begin()->second);
  conversations_.emplace(tail, Conversation{tenant, now, false});
  tenants_[tenant].waiting.emplace(now, tail);
  by_age_.emplace(now, tail);
}

ReturnPredictor::Conversation ReturnPredictor::Remove(PageId tail) {
  const auto it = conversations_.find(tail);
  PAGODA_CHECK(it != conversations_.end());
  const Conversation conversation = it->second;
  if (!conversation.predicted) {
    tenants_.at(conversation.tenant).waiting.erase({conversation.last, tail});
  }
  by_age_.erase({conversation.last, tail});
  conversations_.erase(it);
  return conversation;
}

}  // namespace pagoda::prefetch
