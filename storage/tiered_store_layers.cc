// TieredStore: loading pages from SSD layer by layer.
//
// Several of the loader's threads work on one group: first they open its pages, header by header,
// then they read segments in the order of their layers, whatever page they belong to. Each page
// ends like any other load: visible as a whole, or not at all.
#include <set>
#include <tuple>

#include "storage/base/check.h"
#include "storage/base/status_macros.h"
#include "storage/tiered_store.h"

namespace pagoda {

// What has happened to one page so far, for everybody who waits for it.
class TieredStore::LayerTeller {
 public:
  // A lower form than was named is no answer: OnDone() says so.
  void Add(std::shared_ptr<LayerListener> listener, size_t index, Precision at_least)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    const Whom& whom = whom_.emplace_back(std::move(listener), index, at_least);
    if (page_ == nullptr) return;
    if (page_->precision() < at_least) return;
    whom.listener->OnBegun(index, page_);
    for (uint32_t i = 0; i < there_.size(); ++i) {
      if (there_[i]) whom.listener->OnSegment(index, i);
    }
  }
  void Begin(const HostPagePtr& page) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    page_ = page;
    there_.resize(page->segment_count());
    for (const Whom& whom : whom_) {
      if (page->precision() >= whom.at_least) whom.listener->OnBegun(whom.index, page);
    }
  }
  void There(uint32_t segment) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    there_[segment] = true;
    for (const Whom& whom : whom_) {
      if (page_->precision() >= whom.at_least) whom.listener->OnSegment(whom.index, segment);
    }
  }
  // Before OnDone(), which goes the way of every load.
  void End() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    whom_.clear();
    page_.reset();
  }

 private:
  struct Whom {
    Whom(std::shared_ptr<LayerListener> l, size_t i, Precision p)
        : listener(std::move(l)), index(i), at_least(p) {}
    std::shared_ptr<LayerListener> listener;
    size_t index;
    Precision at_least;
  };
  absl::Mutex mutex_;
  std::vector<Whom> whom_ ABSL_GUARDED_BY(mutex_);
  HostPagePtr page_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> there_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

struct TieredStore::LayerLoad {
  RecordKey key;
  std::shared_ptr<LayerTeller> teller;
  // Of the thread that opens it, then constant.
  Source source;
  uint64_t work = 0;  // of the header
  std::optional<SsdTier::Reader> reader;
  HostPagePtr page;                      // filled through `targets`, which nobody else sees
  std::vector<MutableByteSpan> targets;  // padded
};

struct TieredStore::LayerGroup {
  std::vector<LayerLoad> loads;  // constant size once it runs
  // When a read last ended; relaxed: a time, nothing hangs on its order.
  const std::shared_ptr<std::atomic<int64_t>> progress_ns =
      std::make_shared<std::atomic<int64_t>>();

  absl::Mutex mutex;
  size_t next_load ABSL_GUARDED_BY(mutex) = 0;  // to be opened
  // Segments to read: layer, load, segment.
  std::set<std::tuple<uint32_t, size_t, uint32_t>> segments ABSL_GUARDED_BY(mutex);
  std::vector<uint32_t> left ABSL_GUARDED_BY(mutex);          // segments of each load
  std::vector<absl::Status> statuses ABSL_GUARDED_BY(mutex);  // the first that was not well
};

void TieredStore::LoadLeasedByLayer(absl::string_view session_id, LeaseId id,
                                    absl::Span<const LayerPage> pages,
                                    std::shared_ptr<LayerListener> listener) {
  auto group = std::make_shared<LayerGroup>();
  group->progress_ns->store(absl::ToInt64Nanoseconds(clock_.Monotonic()),
                            std::memory_order_relaxed);
  struct Joined {
    std::shared_ptr<LayerTeller> teller;
    size_t index;
    Precision at_least;
  };
  std::vector<Joined> joined;
  std::vector<std::pair<size_t, absl::StatusOr<HostPagePtr>>> answers;
  {
    absl::MutexLock lock(&mutex_);
    Lease* lease = leases_.Find(session_id, id, clock_.Monotonic());
    for (const LayerPage& page : pages) {
      const LeasedPage* leased = lease == nullptr ? nullptr : lease->FindPage(page.key);
      if (leased == nullptr) {
        answers.emplace_back(page.index,
                             absl::NotFoundError("lease: ended, or does not name this page"));
        continue;
      }
      const Precision at_least = leased->at_least;
      LoadCallback done = [listener, index = page.index,
                           at_least](absl::StatusOr<HostPagePtr> loaded) {
        if (loaded.ok() && (*loaded)->precision() < at_least) {
          loaded = absl::NotFoundError("page: only a lower form is left");
        }
        listener->OnDone(index, std::move(loaded));
      };
      absl::StatusOr<HostPagePtr> answer = absl::UnknownError("");
      switch (BeginLoad(page.key, lease->scope, at_least, done, answer)) {
        case LoadStep::kAnswered:
          answers.emplace_back(page.index, std::move(answer));
          break;
        case LoadStep::kJoined:
          joined.push_back({loads_.at(page.key).teller, page.index, at_least});
          break;
        case LoadStep::kNew: {
          Load& begun = loads_.at(page.key);
          load_deadlines_.emplace_back(begun.deadline, page.key);
          ++counters_.loads_started;
          begun.teller = std::make_shared<LayerTeller>();
          begun.progress_ns = group->progress_ns;
          LayerLoad& load = group->loads.emplace_back();
          load.key = page.key;
          load.teller = begun.teller;
          joined.push_back({begun.teller, page.index, at_least});
          break;
        }
      }
    }
  }
  for (Joined& each : joined) {
    if (each.teller != nullptr) each.teller->Add(listener, each.index, each.at_least);
  }
  {
    absl::MutexLock lock(&group->mutex);
    group->left.assign(group->loads.size(), 0);
    group->statuses.assign(group->loads.size(), absl::OkStatus());
  }
  int runs = 0;
  const int wanted = static_cast<int>(
      std::min<size_t>(static_cast<size_t>(options_.loader_threads), group->loads.size()));
  while (runs < wanted && loader_->TryPush([this, group] { RunLayerGroup(*group); })) ++runs;
  if (runs == 0) {
    for (const LayerLoad& load : group->loads) {
      load.teller->End();
      {
        absl::MutexLock lock(&mutex_);
        if (!loads_.contains(load.key)) continue;  // answered by a shutdown
        ++counters_.load_queue_refusals;
      }
      EndLoad(load.key, absl::ResourceExhaustedError("ssd: the queue of loads is full"));
    }
  }
  for (auto& [index, answer] : answers) listener->OnDone(index, std::move(answer));
}

void TieredStore::RunLayerGroup(LayerGroup& group) {
  while (true) {
    size_t next;
    {
      absl::MutexLock lock(&group.mutex);
      if (group.next_load == group.loads.size()) break;
      next = group.next_load++;
    }
    OpenLayerLoad(group, group.loads[next]);
  }
  while (true) {
    size_t which;
    uint32_t segment;
    {
      absl::MutexLock lock(&group.mutex);
      if (group.segments.empty()) return;  // who still opens a page reads it, too
      std::tie(std::ignore, which, segment) = *group.segments.begin();
      group.segments.erase(group.segments.begin());
    }
    ReadLayerSegment(group, group.loads[which], segment);
  }
}

void TieredStore::OpenLayerLoad(LayerGroup& group, LayerLoad& load) {
  if (auto settled = BeforeRead(load.key, load.source, load.work)) {
    load.teller->End();
    return EndLoad(load.key, *settled);
  }
  const absl::Status status = StageLayerLoad(load);
  EndWork(load.work, status);
  group.progress_ns->store(absl::ToInt64Nanoseconds(clock_.Monotonic()), std::memory_order_relaxed);
  if (!status.ok()) return EndLayerLoad(load, status);
  load.teller->Begin(load.page);
  const auto which = static_cast<size_t>(&load - group.loads.data());
  absl::MutexLock lock(&group.mutex);
  const std::vector<SegmentEntry>& segments = load.page->header().segments;
  group.left[which] = static_cast<uint32_t>(segments.size());
  for (uint32_t i = 0; i < segments.size(); ++i) {
    group.segments.emplace(segments[i].layer_begin, which, i);
  }
}

absl::Status TieredStore::StageLayerLoad(LayerLoad& load) {
  PAGODA_ASSIGN_OR_RETURN(SsdTier::Reader reader,
                          ssd_->ReadPage(load.key, load.source.scope, load.source.identity));
  PAGODA_ASSIGN_OR_RETURN(StagedPage page, StageWithRoom(reader.header(), load.source.demanded));
  load.reader.emplace(std::move(reader));
  for (size_t i = 0; i < page.segment_count(); ++i) load.targets.push_back(page.padded_segment(i));
  PAGODA_ASSIGN_OR_RETURN(load.page, StagedPage::Freeze(std::move(page)));
  return absl::OkStatus();
}

void TieredStore::ReadLayerSegment(LayerGroup& group, LayerLoad& load, uint32_t segment) {
  const auto which = static_cast<size_t>(&load - group.loads.data());
  absl::Status status;
  {
    absl::MutexLock lock(&group.mutex);
    status = group.statuses[which];
  }
  if (status.ok()) {
    // Each read on its own: a page of many is not a disk that hangs.
    uint64_t work;
    {
      absl::MutexLock lock(&mutex_);
      work = BeginDiskWork();
    }
    const absl::Duration start = clock_.Monotonic();
    const MutableByteSpan target = load.targets[segment];
    status = load.reader->ReadSegment(segment, target);
    EndWork(work, status);
    group.progress_ns->store(absl::ToInt64Nanoseconds(clock_.Monotonic()),
                             std::memory_order_relaxed);
    observer_->OnSsdRead(clock_.Monotonic() - start, static_cast<int64_t>(target.size()),
                         status.ok());
    if (status.ok()) load.teller->There(segment);
  }
  {
    absl::MutexLock lock(&group.mutex);
    if (group.statuses[which].ok()) group.statuses[which] = status;
    if (--group.left[which] > 0) return;
    status = group.statuses[which];
  }
  EndLayerLoad(load, status);
}

void TieredStore::Silence(const std::vector<std::shared_ptr<LayerTeller>>& tellers) {
  for (const std::shared_ptr<LayerTeller>& teller : tellers) teller->End();
}

void TieredStore::EndWork(uint64_t work, const absl::Status& status) {
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    EndDiskWork(work, status, after);
  }
  Finish(after);
}

void TieredStore::EndLayerLoad(LayerLoad& load, const absl::Status& status) {
  load.reader.reset();
  absl::StatusOr<HostPagePtr> result = load.page;
  if (!status.ok()) result = status;
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    if (!SettleLoad(load.key, load.source, result, after)) {
      result = absl::AbortedError("page: it changed while it was loaded");
    }
  }
  Finish(after);
  load.teller->End();
  EndLoad(load.key, result);
}

}  // namespace pagoda
