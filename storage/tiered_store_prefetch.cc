// TieredStore: pages that come up from SSD before a request asks for them. What comes, and when, is
// the scheduler's decision; here it learns what happens, and its actions become loads.
#include <algorithm>

#include "absl/hash/hash.h"
#include "storage/base/check.h"
#include "storage/prefetch/layer_order.h"
#include "storage/tiered_store.h"

namespace pagoda {

// A page's name for the scheduler: slot and incarnation, so that one that came back is another one.
prefetch::PageId TieredStore::PageIdOf(EntryId id) const {
  return prefetch::PageId{directory_.at(id).incarnation} << 32 | id;
}

EntryId TieredStore::EntryOf(prefetch::PageId page) const {
  const auto id = static_cast<EntryId>(page & UINT32_MAX);
  if (id == kNoEntry || id >= directory_.slot_count()) return kNoEntry;
  return directory_.at(id).alive() && PageIdOf(id) == page ? id : kNoEntry;
}

uint64_t TieredStore::PrefetchOwner(absl::string_view session_id, absl::string_view request_id) {
  return absl::HashOf(session_id, request_id) | 1;
}

class TieredStore::PrefetchWorld : public prefetch::World {
 public:
  PrefetchWorld(TieredStore& store, Aftermath& after) : store_(store), after_(after) {}

  prefetch::Where WhereIs(prefetch::PageId page) const override {
    store_.mutex_.AssertHeld();
    const EntryId id = store_.EntryOf(page);
    if (id == kNoEntry) return prefetch::Where::kGone;
    const DirectoryEntry& entry = store_.directory_.at(id);
    if (entry.quarantined) return prefetch::Where::kGone;
    if (entry.host != nullptr) return prefetch::Where::kHost;
    return store_.loads_.contains(entry.record) ? prefetch::Where::kLoading : prefetch::Where::kSsd;
  }
  int64_t BytesOf(prefetch::PageId page) const override {
    store_.mutex_.AssertHeld();
    return store_.directory_.ssd_policy().bytes_of(store_.EntryOf(page));
  }
  prefetch::PageId ParentOf(prefetch::PageId page) const override {
    store_.mutex_.AssertHeld();
    const EntryId id = store_.EntryOf(page);
    if (id == kNoEntry) return prefetch::kNoPage;
    const EntryId parent = store_.directory_.at(id).parent;
    const bool alive = parent != kNoEntry && store_.directory_.at(parent).alive();
    return alive ? store_.PageIdOf(parent) : prefetch::kNoPage;
  }
  std::optional<int64_t> MakeWay(int64_t bytes,
                                 absl::FunctionRef<bool(prefetch::PageId)> is_colder) override;

 private:
  TieredStore& store_;
  Aftermath& after_;
};

// Free room ends between the marks: what fills memory up to the start mark would make demotion
// throw out a tenth of it at the next push.
std::optional<int64_t> TieredStore::PrefetchWorld::MakeWay(
    int64_t bytes, absl::FunctionRef<bool(prefetch::PageId)> is_colder) {
  store_.mutex_.AssertHeld();
  const HostTierUsage usage = store_.host_->usage();
  const policy::Watermarks& marks = store_.policies_.host.marks;
  const auto ceiling = static_cast<int64_t>((marks.start + marks.stop) / 2 *
                                            static_cast<double>(usage.capacity_bytes));
  int64_t victim_count = 0;
  if (usage.used_bytes + store_.prefetch_reserved_bytes_ + bytes > ceiling) {
    policy::EvictionGuard guard = store_.GuardOf(TierKind::kHost, /*presser=*/nullptr);
    // Who goes next is the policy's choice; that it is colder, and loses nothing, is the condition.
    const std::vector<EntryId> victims =
        store_.directory_.host_policy().PickVictims(bytes, [&](EntryId id) {
          store_.mutex_.AssertHeld();
          return store_.MayLeaveHost(id) && !store_.NeedsWriting(id) &&
                 store_.directory_.at(id).on_ssd() &&
                 guard.MayTake(store_.CandidateOf(TierKind::kHost, id));
        });
    int64_t freed_bytes = 0;
    for (const EntryId id : victims) {
      if (!is_colder(store_.PageIdOf(id))) return std::nullopt;
      freed_bytes += store_.directory_.at(id).host->bytes();
    }
    if (freed_bytes < bytes) return std::nullopt;
    for (const EntryId id : victims) store_.DropHost(id, EvictionReason::kPrefetch, after_);
    victim_count = static_cast<int64_t>(victims.size());
  }
  store_.prefetch_reserved_bytes_ += bytes;
  return victim_count;
}

void TieredStore::StartPrefetches(Aftermath& after) {
  if (ssd_ == nullptr || closing_ || !breaker_.closed()) return;
  const absl::Duration now = clock_.Monotonic();
  PrefetchWorld world(*this, after);
  for (const prefetch::Action& action : prefetch_.Poll(now, world)) {
    const RecordKey key = directory_.at(EntryOf(action.page)).record;
    const auto [load, added] = loads_.try_emplace(key);
    PAGODA_CHECK(added);  // WhereIs said that nobody reads it
    if (!loader_->TryPush([this, key] { RunLoad(key); })) {
      loads_.erase(load);
      prefetch_reserved_bytes_ -= action.bytes;
      prefetch_.OnLoaded(action.page, /*ok=*/false);
      ++counters_.load_queue_refusals;
      continue;
    }
    load->second.deadline = now + options_.load_timeout;
    load_deadlines_.emplace_back(load->second.deadline, key);
    load->second.prefetched = action.page;
    load->second.reserved_bytes = action.bytes;
    ++counters_.loads_started;
  }
}

void TieredStore::ObserveLookup(const LookupQuery& query, absl::Span<const EntryId> ids) {
  if (ssd_ == nullptr || ids.empty()) return;
  std::vector<prefetch::UsedPage> used;
  used.reserve(ids.size());
  for (const EntryId id : ids) {
    const DirectoryEntry& entry = directory_.at(id);
    used.push_back({PageIdOf(id), entry.host == nullptr && !loads_.contains(entry.record)});
  }
  const std::string& session = query.lease.session_id;
  const size_t queued = prefetch_.queue_size();
  prefetch_.OnLookup(used, session.empty() ? 0 : PrefetchOwner(session),
                     static_cast<uint32_t>(absl::HashOf(query.scope)), clock_.Monotonic());
  if (prefetch_.queue_size() > queued) prefetch_asked_ = true;
}

int64_t TieredStore::Prefetch(const PrefetchQuery& query) {
  const bool sequence = !query.first_layers.empty();
  PAGODA_CHECK(!sequence || query.first_layers.size() == query.keys.size());
  absl::MutexLock lock(&mutex_);
  if (closing_) return 0;
  const absl::Duration now = clock_.Monotonic();
  const prefetch::Options& options = prefetch_.options();
  std::vector<prefetch::LayerPart> parts;
  int64_t accepted = 0;
  for (size_t i = 0; i < query.keys.size(); ++i) {
    const EntryId id = directory_.Find(query.keys[i], query.scope);
    const bool stored =
        id != kNoEntry && !directory_.at(id).quarantined &&
        (!query.identity.has_value() || directory_.identity_of(id) == *query.identity);
    if (!stored && !sequence) break;
    if (!stored) continue;
    if (directory_.at(id).host != nullptr || loads_.contains(query.keys[i])) {
      ++accepted;
      continue;
    }
    // Of a hint every part is needed at once: in the order of the chain.
    parts.push_back(
        {static_cast<uint32_t>(i), static_cast<uint32_t>(i), sequence ? query.first_layers[i] : 0});
  }
  const absl::Duration expires =
      now + (query.deadline > absl::ZeroDuration() ? query.deadline : options.hint_deadline);
  for (const prefetch::OrderedPart& part : OrderByLayer(parts, now, options.layer_time)) {
    const EntryId id = directory_.Find(query.keys[part.page_index], query.scope);
    prefetch::Want want;
    want.page = PageIdOf(id);
    want.source = sequence ? prefetch::Source::kSequence : prefetch::Source::kHint;
    want.deadline = sequence ? part.deadline : expires;
    want.expires = expires;
    if (!query.session_id.empty()) {
      want.owner = PrefetchOwner(query.session_id, query.request_id);
    }
    if (prefetch_.Ask(want, now)) ++accepted;
  }
  if (prefetch_.has_work()) prefetch_asked_ = true;
  return accepted;
}

void TieredStore::SetPrefetchListener(
    std::function<void(const RecordKey&, const ScopeId&)> listener) {
  absl::MutexLock lock(&mutex_);
  on_prefetched_ = std::move(listener);
}

}  // namespace pagoda
