#include "storage/prefetch/prefetch_scheduler.h"

#include <algorithm>

#include "storage/base/check.h"

namespace pagoda::prefetch {
namespace {

constexpr absl::Duration kSavedMax = absl::Milliseconds(250);  // of unused bandwidth
constexpr absl::Duration kNextPageTime = absl::Seconds(30);    // a follower later than that is none
constexpr double kCertain = 1;                                 // uses expected of a page asked for
constexpr double kReturns = 0.5;                               // of a conversation that is due

}  // namespace

Scheduler::Scheduler(const Options& options)
    : options_(options),
      queue_(static_cast<size_t>(options.queue_pages_max)),
      budget_(options.bytes_per_second, kSavedMax),
      hotness_(options.heat),
      successors_(options.successors),
      returns_(options.returns) {}

void Scheduler::Offer(const QueueItem& item) {
  outcomes_.OnAsked(item.source);
  Enqueue(item);
}

void Scheduler::Enqueue(const QueueItem& item) {
  const std::optional<QueueItem> loser = queue_.Offer(item);
  if (!loser.has_value()) return;
  const bool known = loser->page == item.page && queue_.contains(item.page);
  outcomes_.OnDropped(loser->source, known ? DropReason::kResident : DropReason::kQueueFull);
}

bool Scheduler::Ask(const Want& want, absl::Duration now) {
  PAGODA_CHECK(want.source == Source::kHint || want.source == Source::kSequence);
  if (!options_.Enabled(want.source)) return false;
  if (want.expires <= now) {
    outcomes_.OnAsked(want.source);
    outcomes_.OnDropped(want.source, DropReason::kDeadline);
    return false;
  }
  Offer({want.page, want.source, want.deadline, want.expires, want.owner, kCertain});
  return queue_.contains(want.page);
}

void Scheduler::OnLookup(absl::Span<const UsedPage> pages, uint64_t stream, uint32_t tenant,
                         absl::Duration now) {
  if (pages.empty()) return;
  std::vector<PageId> ids;
  ids.reserve(pages.size());
  for (const UsedPage& used : pages) {
    outcomes_.OnUse(used.page, used.needs_load);
    ids.push_back(used.page);
  }
  if (options_.hotness) hotness_.Use(ids, now);
  if (options_.next_page) LearnSteps(ids, stream, now);
  if (options_.predicted_return) returns_.OnLookup(tenant, ids, now);
}

void Scheduler::LearnSteps(absl::Span<const PageId> pages, uint64_t stream, absl::Duration now) {
  const absl::Span<const PageId> tail =
      pages.subspan(pages.size() - std::min(pages.size(), kLearnedMax));
  for (size_t i = 1; i < tail.size(); ++i) successors_.Learn(tail[i - 1], tail[i]);
  if (stream != 0) {
    if (streams_.size() >= kStreamsMax && !streams_.contains(stream)) streams_.clear();
    PageId& last = streams_[stream];
    // A chain that runs through the page used last has told what follows it already.
    const bool continued = std::find(tail.begin(), tail.end(), last) != tail.end();
    if (last != kNoPage && !continued) successors_.Learn(last, pages.front());
    last = pages.back();
  }
  for (const SuccessorTable::Prediction& next : successors_.Predict(pages.back())) {
    Offer({next.page, Source::kNextPage, now + kNextPageTime, now + kNextPageTime, 0,
           next.confidence});
  }
}

void Scheduler::OnCommit(PageId parent, PageId page, absl::Duration now) {
  if (options_.predicted_return && parent != kNoPage) returns_.OnCommit(parent, page, now);
}

void Scheduler::OnLoaded(PageId page, bool ok) { outcomes_.OnLoaded(page, ok); }

void Scheduler::OnLeft(PageId page, bool on_ssd, absl::Duration now) {
  outcomes_.OnLeft(page);
  if (!options_.hotness || !on_ssd || !hotness_.IsHot(page, now)) return;
  // By then it has cooled, or a request has brought it up.
  const absl::Duration cold = now + options_.heat.half_life;
  Offer({page, Source::kHotness, cold, cold, 0, 0});
}

void Scheduler::Cancel(uint64_t owner) {
  queue_.Cancel(owner, [this](const QueueItem& item) {
    outcomes_.OnDropped(item.source, DropReason::kCancelled);
  });
}

void Scheduler::OfferReturns(absl::Duration now, const World& world) {
  for (const ReturnPredictor::Due& due : returns_.TakeDue(now)) {
    std::vector<PageId> chain;
    for (PageId page = due.tail; page != kNoPage && chain.size() < kReturnPagesMax;
         page = world.ParentOf(page)) {
      if (world.WhereIs(page) == Where::kSsd) chain.push_back(page);
    }
    // Root first: a page is of no use without those before it.
    for (auto page = chain.rbegin(); page != chain.rend(); ++page) {
      Offer({*page, Source::kReturn, due.give_up, due.give_up, 0, kReturns});
    }
  }
}

std::optional<Action> Scheduler::Decide(const QueueItem& item, absl::Duration now, World& world,
                                        bool& no_room) {
  if (item.expires <= now) {
    outcomes_.OnDropped(item.source, DropReason::kDeadline);
    return std::nullopt;
  }
  const Where where = world.WhereIs(item.page);
  if (where != Where::kSsd || outcomes_.loading(item.page)) {
    outcomes_.OnDropped(item.source,
                        where == Where::kGone ? DropReason::kGone : DropReason::kResident);
    return std::nullopt;
  }
  const int64_t bytes = world.BytesOf(item.page);
  const double worth = item.worth + hotness_.ScoreOf(item.page, now);
  const std::optional<int64_t> victims =
      world.MakeWay(bytes, [&](PageId victim) { return hotness_.ScoreOf(victim, now) < worth; });
  if (!victims.has_value()) {
    no_room = true;
    return std::nullopt;
  }
  budget_.Take(bytes);
  outcomes_.OnStarted(item.page, item.source, *victims);
  return Action{item.page, item.source, bytes};
}

std::vector<Action> Scheduler::Poll(absl::Duration now, World& world) {
  std::vector<Action> actions;
  if (options_.predicted_return) OfferReturns(now, world);
  std::vector<QueueItem> waiting;  // for room
  for (int looked = 0; looked < kLooksMax && outcomes_.loading_count() < options_.loads_max &&
                       waiting.size() < kRefusalsMax && budget_.Open(now);
       ++looked) {
    const std::optional<QueueItem> item = queue_.Pop();
    if (!item.has_value()) break;
    bool no_room = false;
    if (const std::optional<Action> action = Decide(*item, now, world, no_room)) {
      actions.push_back(*action);
    } else if (no_room) {
      waiting.push_back(*item);
    }
  }
  for (const QueueItem& item : waiting) Enqueue(item);
  return actions;
}

Counters Scheduler::counters() const {
  Counters counters = outcomes_.counters();
  counters.queued = static_cast<int64_t>(queue_.size());
  return counters;
}

}  // namespace pagoda::prefetch
