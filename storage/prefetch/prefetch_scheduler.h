// Decides which pages come up from SSD before a request asks for them. It joins the five sources in
// one queue and lets through what bandwidth and room allow. Pure: events in, actions out, the time
// an argument, the store's state asked through World.
//
//   hints, sequences -> Want() ------------.
//   OnLookup, OnCommit -> statistics ------+-> queue -> Poll() -> Action: read this page
//   OnLeft -> hotness ---------------------'                        |
//   counters() <- outcomes <- OnLookup, OnLoaded, OnLeft <----------'
//
// It never makes a request wait: few loads at a time, no more bytes a second than allowed. It never
// displaces what is leased, pinned or hotter: World::MakeWay answers for that.
//
// Threads    externally synchronised (TieredStore holds its lock); times never go back
// Ownership  World is used during Poll only
// Limits     Options; streams_max streams of next-page statistics
// Cost       OnLookup: one hash look-up a page for each statistic; Poll: O(log queue) a page
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/prefetch/bandwidth_budget.h"
#include "storage/prefetch/hotness.h"
#include "storage/prefetch/prefetch_options.h"
#include "storage/prefetch/prefetch_outcomes.h"
#include "storage/prefetch/prefetch_page.h"
#include "storage/prefetch/prefetch_queue.h"
#include "storage/prefetch/return_predictor.h"
#include "storage/prefetch/successor_table.h"

namespace pagoda::prefetch {

enum class Where : uint8_t { kGone, kSsd, kLoading, kHost };

// What the scheduler must know of the store while it decides.
class World {
 public:
  virtual ~World() = default;
  virtual Where WhereIs(PageId page) const = 0;
  virtual int64_t BytesOf(PageId page) const = 0;  // of a page on SSD
  virtual PageId ParentOf(PageId page) const = 0;  // kNoPage at a root
  // Finds room for `bytes` and keeps it until the read has ended: free room, or that of pages for
  // which `is_colder` holds and that are neither leased nor pinned nor read. Returns how many pages
  // made way; nothing if there is no room, and then nothing was changed.
  virtual std::optional<int64_t> MakeWay(int64_t bytes,
                                         absl::FunctionRef<bool(PageId)> is_colder) = 0;
};

struct Action {
  PageId page = kNoPage;
  Source source = Source::kHint;
  int64_t bytes = 0;
};

struct Want {
  PageId page = kNoPage;
  Source source = Source::kHint;  // kHint or kSequence
  absl::Duration deadline;        // when it will be used
  absl::Duration expires;         // then it is dropped
  uint64_t owner = 0;             // for Cancel
};

struct UsedPage {
  PageId page = kNoPage;
  bool needs_load = false;  // on SSD, and nobody reads it yet
};

class Scheduler {
 public:
  explicit Scheduler(const Options& options);

  // ---- Events -------------------------------------------------------------------------------
  // False when the source is off, it has expired, or the queue is full of better.
  bool Ask(const Want& want, absl::Duration now);
  // A request used these pages, root first. `stream` (0: none) ties lookups of one client in order;
  // `tenant` shares one rhythm of turns.
  void OnLookup(absl::Span<const UsedPage> pages, uint64_t stream, uint32_t tenant,
                absl::Duration now);
  void OnCommit(PageId parent, PageId page, absl::Duration now);
  // The read that an action asked for has ended. Ignored for other reads.
  void OnLoaded(PageId page, bool ok);
  // The page left host memory; `on_ssd`: it can come back.
  void OnLeft(PageId page, bool on_ssd, absl::Duration now);
  // Takes back what this owner asked for and is not being read yet.
  void Cancel(uint64_t owner);

  // ---- Decisions ----------------------------------------------------------------------------
  // Reads to start now; each ends in OnLoaded.
  std::vector<Action> Poll(absl::Duration now, World& world);

  double HotnessOf(PageId page, absl::Duration now) const { return hotness_.ScoreOf(page, now); }
  bool loading(PageId page) const { return outcomes_.loading(page); }
  size_t queue_size() const { return queue_.size(); }
  bool has_work() const { return queue_size() > 0; }
  Counters counters() const;
  const Options& options() const { return options_; }

 private:
  static constexpr size_t kStreamsMax = 4096;
  static constexpr size_t kLearnedMax = 256;       // steps of one lookup that are learned
  static constexpr size_t kReturnPagesMax = 4096;  // of one conversation
  static constexpr int kLooksMax = 256;            // at items in one Poll
  static constexpr size_t kRefusalsMax = 4;        // of room in one Poll

  void Offer(const QueueItem& item);    // counts it as asked for
  void Enqueue(const QueueItem& item);  // without
  void LearnSteps(absl::Span<const PageId> pages, uint64_t stream, absl::Duration now);
  void OfferReturns(absl::Duration now, const World& world);
  // The action for an item, or nothing; `no_room` if only room was lacking.
  std::optional<Action> Decide(const QueueItem& item, absl::Duration now, World& world,
                               bool& no_room);

  const Options options_;
  PrefetchQueue queue_;
  BandwidthBudget budget_;
  Outcomes outcomes_;
  Hotness hotness_;
  SuccessorTable successors_;
  ReturnPredictor returns_;
  absl::flat_hash_map<uint64_t, PageId> streams_;  // the page each used last
};

}  // namespace pagoda::prefetch
