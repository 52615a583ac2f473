#include "client/shm_fetch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "client/fetch_memory.h"
#include "client/high_planes.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

class ShmPageFetch : public PageFetch {
 public:
  ShmPageFetch(std::unique_ptr<ShmView> pages, const FetchOptions& options,
               std::unique_ptr<ShmLoad> load)
      : shm_(std::move(pages)),
        load_(std::move(load)),
        options_(options),
        status_(shm_->status()) {}

  absl::StatusOr<std::vector<PageHeader>> WaitHeaders(absl::Duration) override {
    Begin();
    if (pages_.empty() && !status_.ok()) return status_;
    std::vector<PageHeader> headers;
    headers.reserve(pages_.size());
    for (const Copying& page : pages_) headers.push_back(page.source.header);
    return headers;
  }

  absl::Status WaitLayer(uint32_t layer, absl::Duration timeout) override {
    Begin();
    if (load_ != nullptr) PAGODA_RETURN_IF_ERROR(load_->WaitLayer(layer, promised_, timeout));
    CopyUpTo(layer, /*high_only=*/false);
    return pages_.size() == promised_ && !lost_lo_ ? absl::OkStatus() : status_;
  }

  // Pages that still load come layer by layer with all their planes.
  absl::Status WaitHighLayer(uint32_t layer, absl::Duration timeout) override {
    Begin();
    if (load_ != nullptr) PAGODA_RETURN_IF_ERROR(load_->WaitLayer(layer, promised_, timeout));
    CopyUpTo(layer, /*high_only=*/true);
    return pages_.size() == promised_ ? absl::OkStatus() : status_;
  }

  FetchResult Wait() override {
    Begin();
    if (load_ != nullptr) WaitAllPages();
    if (options_.order == PlaneOrder::kHighFirst) CopyUpTo(UINT32_MAX, /*high_only=*/true);
    CopyUpTo(UINT32_MAX, /*high_only=*/false);
    FetchResult result;
    result.status = status_;
    result.pages.reserve(pages_.size());
    for (Copying& page : pages_) {
      if (std::find(page.copied.begin(), page.copied.end(), false) != page.copied.end()) {
        ReduceToHigh(page.source.header, page.memory.own);
        ++result.reduced_pages;
      }
      result.bytes += page.source.header.stored_bytes();
      result.pages.push_back(
          {std::move(page.source.header), std::move(page.memory.own), page.source.tier});
    }
    return result;
  }

  void Cancel() override { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  struct Copying {
    MappedPage source;
    FetchMemory memory;
    std::vector<bool> copied;
    std::vector<bool> high;  // by segment: needed for q4
    bool high_copied = false;
  };

  void Begin() {
    if (begun_) return;
    begun_ = true;
    for (size_t i = 0; i < shm_->size(); ++i) {
      absl::StatusOr<Copying> page = BeginPage(i);
      if (page.ok()) {
        pages_.push_back(*std::move(page));
        promised_ = pages_.size();
        continue;
      }
      status_ = page.status();
      return;
    }
  }

  absl::StatusOr<Copying> BeginPage(size_t index) const {
    Copying page;
    PAGODA_ASSIGN_OR_RETURN(page.source, shm_->Page(index));
    const PageHeader& header = page.source.header;
    if (options_.precision_max != Precision::kNone &&
        PrecisionOf(header.planes) > options_.precision_max) {
      return absl::FailedPreconditionError("shm: the page is kept in a richer form than was asked");
    }
    PAGODA_ASSIGN_OR_RETURN(page.memory,
                            MemoryFor(static_cast<uint32_t>(index), header, options_.target));
    page.copied.resize(header.segments.size());
    page.high = HighSegments(header);
    return page;
  }

  void WaitAllPages() {
    const absl::StatusOr<size_t> came = load_->WaitAll();
    if (!came.ok()) status_ = came.status();
    const size_t good = came.value_or(0);
    if (good < pages_.size()) {
      if (status_.ok()) status_ = absl::AbortedError("shm: a page was lost on its way");
      pages_.resize(good);
    }
  }

  // Pages from the first one that is gone are dropped. With kHighFirst a page whose hi was copied
  // stays as that.
  void CopyUpTo(uint32_t layer, bool high_only) {
    for (size_t i = 0; i < pages_.size(); ++i) {
      const std::vector<bool> before = pages_[i].copied;
      if (cancelled_.load(std::memory_order_relaxed)) {
        status_ = absl::CancelledError("fetch: cancelled");
      } else if (CopyPage(pages_[i], layer, high_only) && !shm_->StillThere(i)) {
        status_ = absl::AbortedError("shm: a page was given back while it was read");
      } else {
        pages_[i].high_copied = pages_[i].high_copied || (high_only && layer == UINT32_MAX);
        continue;
      }
      if (options_.order == PlaneOrder::kHighFirst && pages_[i].high_copied) {
        pages_[i].copied = before;
        lost_lo_ = true;
        continue;
      }
      pages_.resize(i);
      return;
    }
  }

  // Whether anything was copied.
  static bool CopyPage(Copying& page, uint32_t layer, bool high_only) {
    bool any = false;
    for (size_t s = 0; s < page.copied.size(); ++s) {
      if (page.copied[s] || page.source.header.segments[s].layer_begin > layer) continue;
      if (high_only && !page.high[s]) continue;
      const ByteSpan from = page.source.segments[s];
      std::memcpy(page.memory.segments[s].data(), from.data(), from.size());
      page.copied[s] = true;
      any = true;
    }
    return any;
  }

  const std::unique_ptr<ShmView> shm_;
  const std::unique_ptr<ShmLoad> load_;  // null: all bytes are there
  const FetchOptions options_;
  std::atomic<bool> cancelled_{false};  // relaxed: noticed between pages
  bool begun_ = false;
  std::vector<Copying> pages_;
  size_t promised_ = 0;   // of them, at the beginning
  bool lost_lo_ = false;  // of a page that stays without it
  absl::Status status_;   // why pages_ are fewer, or less exact, than asked
};

}  // namespace

std::unique_ptr<PageFetch> FetchFromShm(std::unique_ptr<ShmView> pages, const FetchOptions& options,
                                        std::unique_ptr<ShmLoad> load) {
  return std::make_unique<ShmPageFetch>(std::move(pages), options, std::move(load));
}

}  // namespace pagoda::client
