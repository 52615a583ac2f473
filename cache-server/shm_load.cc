#include "cache-server/shm_load.h"

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache-server/shm_locate.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

class Loading : public TieredStore::LayerListener, public std::enable_shared_from_this<Loading> {
 public:
  Loading(ServiceContext& context, std::shared_ptr<ShmConnection> connection, uint32_t tag)
      : context_(context), connection_(std::move(connection)), tag_(tag) {
    connection_->locating().fetch_add(1, std::memory_order_relaxed);
  }
  ~Loading() override { connection_->locating().fetch_sub(1, std::memory_order_relaxed); }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  void Run(const shm::Request& request) {
    absl::StatusOr<LocateTarget> target = ParseLocate(context_, *connection_, request);
    if (!target.ok()) return connection_->SendStatus(shm::Op::kLoad, tag_, target.status());
    target_ = *std::move(target);
    const size_t count = target_.keys.size();
    {
      absl::MutexLock lock(&mutex_);
      pages_.resize(count);
      unknown_ = count + 1;  // one more for this loop
      unfinished_ = count + 1;
    }
    std::vector<TieredStore::LayerPage> missing;
    for (size_t i = 0; i < count; ++i) {
      absl::StatusOr<HostPagePtr> page =
          context_.store.GetLeased(connection_->session()->view(), target_.lease, target_.keys[i]);
      if (page.ok() && *page == nullptr) {
        missing.push_back({i, target_.keys[i]});
      } else {
        End(i, std::move(page));
      }
    }
    if (!missing.empty()) {
      context_.store.LoadLeasedByLayer(connection_->session()->view(), target_.lease, missing,
                                       shared_from_this());
    }
    Know(1);
    Finish(1);
  }

  void OnBegun(size_t index, const HostPagePtr& page) override {
    {
      absl::MutexLock lock(&mutex_);
      pages_[index].page = page;
      pages_[index].there.resize(page->segment_count());
    }
    Know(1);
  }

  void OnSegment(size_t index, uint32_t segment) override {
    absl::MutexLock lock(&mutex_);
    Page& page = pages_[index];
    page.there[segment] = true;
    if (index >= promised_) return;  // not promised, or nothing is yet
    Count(page.page->header().segments[segment], -1);
    TellLayers();
  }

  // The lease holds what GetLeased gives, and nothing else.
  void OnDone(size_t index, absl::StatusOr<HostPagePtr> page) override {
    if (page.ok()) {
      context_.encoder.Consider({target_.keys[index], (*page)->header().scope});
      absl::StatusOr<HostPagePtr> held = context_.store.GetLeased(
          connection_->session()->view(), target_.lease, target_.keys[index]);
      if (held.ok() && *held == nullptr) held = absl::UnavailableError("the page went again");
      page = std::move(held);
    }
    End(index, std::move(page));
  }

 private:
  struct Page {
    HostPagePtr page;         // once its place is known
    std::vector<bool> there;  // by segment; empty: all of it
    bool over = false;
    absl::Status status;
  };

  void End(size_t index, absl::StatusOr<HostPagePtr> result) ABSL_LOCKS_EXCLUDED(mutex_) {
    bool was_unknown = false;
    {
      absl::MutexLock lock(&mutex_);
      Page& page = pages_[index];
      was_unknown = page.page == nullptr;
      page.over = true;
      if (!result.ok()) {
        page.status = result.status();
      } else if (was_unknown) {
        page.page = *std::move(result);
      } else if (page.page != *result) {
        page.status = absl::AbortedError("the page lies elsewhere now");
      }
    }
    if (was_unknown) Know(1);
    Finish(1);
  }

  void Count(const SegmentEntry& segment, int32_t change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t end = size_t{segment.layer_begin} + segment.layer_count;
    if (missing_.size() < end) missing_.resize(end);
    for (size_t layer = segment.layer_begin; layer < end; ++layer) missing_[layer] += change;
  }

  // So many pages more are known, or known not to come. After the last: where they lie.
  void Know(size_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    unknown_ -= count;
    if (unknown_ > 0) return;
    std::vector<HostPagePtr> known;
    for (const Page& page : pages_) {
      if (page.page == nullptr) break;
      known.push_back(page.page);
    }
    promised_ = SendPlaces(context_, *connection_, shm::Op::kLoad, tag_, known, nullptr);
    for (size_t i = 0; i < promised_; ++i) {
      const Page& page = pages_[i];
      const PageHeader& header = page.page->header();
      if (missing_.size() < header.layer_count) missing_.resize(header.layer_count);
      for (size_t s = 0; s < page.there.size(); ++s) {
        if (!page.there[s]) Count(header.segments[s], 1);
      }
    }
    TellLayers();
  }

  // Once more layers are complete over all promised pages.
  void TellLayers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uint32_t complete = layers_told_;
    while (complete < missing_.size() && missing_[complete] == 0) ++complete;
    if (complete == layers_told_) return;
    layers_told_ = complete;
    shm::Reply reply;
    reply.op = shm::Op::kLoad;
    reply.tag = tag_;
    reply.outcome = complete;
    std::string packet;
    shm::AppendStruct(packet, reply);
    connection_->Send(std::move(packet));
  }

  // So many pages more have ended. After the last: how many of the leading ones came.
  void Finish(size_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    unfinished_ -= count;
    if (unfinished_ > 0) return;
    shm::Reply reply;
    reply.op = shm::Op::kLoad;
    reply.tag = tag_;
    reply.last = 1;
    absl::Status why;
    for (size_t i = 0; i < promised_ && why.ok(); ++i) {
      why = pages_[i].status;
      if (why.ok()) ++reply.outcome;
    }
    if (why.ok() && promised_ < pages_.size()) why = pages_[promised_].status;
    reply.code = static_cast<int32_t>(why.code());
    std::string packet;
    shm::AppendStruct(packet, reply);
    absl::StrAppend(&packet, why.message().substr(0, 4096));
    connection_->Send(std::move(packet));
    for (Page& page : pages_) page.page.reset();
  }

  ServiceContext& context_;
  const std::shared_ptr<ShmConnection> connection_;
  const uint32_t tag_;
  LocateTarget target_;  // constant once pages are asked for

  absl::Mutex mutex_;
  std::vector<Page> pages_ ABSL_GUARDED_BY(mutex_);
  size_t unknown_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t promised_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int32_t> missing_ ABSL_GUARDED_BY(mutex_);  // segments of promised pages, by layer
  uint32_t layers_told_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

void LoadPages(ServiceContext& context, std::shared_ptr<ShmConnection> connection,
               const shm::Request& request) {
  std::make_shared<Loading>(context, std::move(connection), request.tag)->Run(request);
}

}  // namespace pagoda
