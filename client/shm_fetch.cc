#include "client/shm_fetch.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "client/fetch_memory.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

class ShmPageFetch : public PageFetch {
 public:
  ShmPageFetch(std::unique_ptr<ShmView> pages, const FetchOptions& options)
      : shm_(std::move(pages)), options_(options), status_(shm_->status()) {}

  absl::StatusOr<std::vector<PageHeader>> WaitHeaders(absl::Duration) override {
    Begin();
    if (pages_.empty() && !status_.ok()) return status_;
    std::vector<PageHeader> headers;
    headers.reserve(pages_.size());
    for (const Copying& page : pages_) headers.push_back(page.source.header);
    return headers;
  }

  absl::Status WaitLayer(uint32_t layer, absl::Duration) override {
    Begin();
    const size_t promised = pages_.size();
    CopyUpTo(layer);
    return pages_.size() == promised ? absl::OkStatus() : status_;
  }

  FetchResult Wait() override {
    Begin();
    CopyUpTo(UINT32_MAX);
    FetchResult result;
    result.status = status_;
    result.pages.reserve(pages_.size());
    for (Copying& page : pages_) {
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
  };

  void Begin() {
    if (begun_) return;
    begun_ = true;
    for (size_t i = 0; i < shm_->size(); ++i) {
      absl::StatusOr<Copying> page = BeginPage(i);
      if (page.ok()) {
        pages_.push_back(*std::move(page));
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
    return page;
  }

  // Pages from the first one that is gone are dropped.
  void CopyUpTo(uint32_t layer) {
    for (size_t i = 0; i < pages_.size(); ++i) {
      if (cancelled_.load(std::memory_order_relaxed)) {
        status_ = absl::CancelledError("fetch: cancelled");
      } else if (CopyPage(pages_[i], layer) && !shm_->StillThere(i)) {
        status_ = absl::AbortedError("shm: a page was given back while it was read");
      } else {
        continue;
      }
      pages_.resize(i);
      return;
    }
  }

  // Whether anything was copied.
  static bool CopyPage(Copying& page, uint32_t layer) {
    bool any = false;
    for (size_t s = 0; s < page.copied.size(); ++s) {
      if (page.copied[s] || page.source.header.segments[s].layer_begin > layer) continue;
      const ByteSpan from = page.source.segments[s];
      std::memcpy(page.memory.segments[s].data(), from.data(), from.size());
      page.copied[s] = true;
      any = true;
    }
    return any;
  }

  const std::unique_ptr<ShmView> shm_;
  const FetchOptions options_;
  std::atomic<bool> cancelled_{false};  // relaxed: noticed between pages
  bool begun_ = false;
  std::vector<Copying> pages_;
  absl::Status status_;  // why pages_ are fewer than asked
};

}  // namespace

std::unique_ptr<PageFetch> FetchFromShm(std::unique_ptr<ShmView> pages,
                                        const FetchOptions& options) {
  return std::make_unique<ShmPageFetch>(std::move(pages), options);
}

}  // namespace pagoda::client
