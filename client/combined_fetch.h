// What is left for another way: which pages shared memory can serve, and a fetch that goes on over
// gRPC where it could not.
//
// Threads  as PageFetch; ServesOf() is a pure function
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"

namespace pagoda::client {

// What shared memory has of those pages: no other form than the stored one.
struct ShmServes {
  bool as_stored = true;
  bool ready = true;  // in memory by now
};
inline ShmServes ServesOf(const LookupResult& hit, uint32_t begin, uint32_t count, Precision most) {
  ShmServes serves;
  for (uint32_t i = begin; i < begin + count; ++i) {
    serves.ready = serves.ready && !hit.pages[i].loading;
    serves.as_stored =
        serves.as_stored && (most == Precision::kNone || hit.pages[i].precision <= most);
  }
  return serves;
}

// A fetch as the caller sees it: by one way, and what that did not give by another.
class CombinedFetch : public PageFetch {
 public:
  // What is left after so many pages, over gRPC; null where nothing comes after `source`.
  using Rest = std::function<std::unique_ptr<PageFetch>(uint32_t done)>;
  using OnEnd = std::function<void(const FetchResult& result, uint32_t by_source)>;

  CombinedFetch(std::unique_ptr<PageFetch> source, uint32_t page_count, Rest rest, OnEnd on_end)
      : source_(std::move(source)),
        page_count_(page_count),
        rest_(std::move(rest)),
        on_end_(std::move(on_end)) {}

  absl::StatusOr<std::vector<PageHeader>> WaitHeaders(absl::Duration timeout) override {
    return source_->WaitHeaders(timeout);
  }
  absl::Status WaitLayer(uint32_t layer, absl::Duration timeout) override {
    return source_->WaitLayer(layer, timeout);
  }
  absl::Status WaitHighLayer(uint32_t layer, absl::Duration timeout) override {
    return source_->WaitHighLayer(layer, timeout);
  }
  FetchResult Wait() override {
    FetchResult result = source_->Wait();
    const auto done = static_cast<uint32_t>(result.pages.size());
    if (done < page_count_ && rest_ != nullptr && !cancelled_.load()) {
      PageFetch* more = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        more_ = rest_(done);
        more = more_.get();
      }
      if (cancelled_.load()) more->Cancel();
      FetchResult rest = more->Wait();
      result.status = std::move(rest.status);
      result.bytes += rest.bytes;
      result.reduced_pages += rest.reduced_pages;
      for (FetchedPage& page : rest.pages) result.pages.push_back(std::move(page));
    }
    on_end_(result, done);
    return result;
  }
  void Cancel() override {
    cancelled_.store(true);
    source_->Cancel();
    absl::MutexLock lock(&mutex_);
    if (more_ != nullptr) more_->Cancel();
  }

 private:
  const std::unique_ptr<PageFetch> source_;
  const uint32_t page_count_;
  const Rest rest_;
  const OnEnd on_end_;
  std::atomic<bool> cancelled_{false};
  absl::Mutex mutex_;
  std::unique_ptr<PageFetch> more_ ABSL_GUARDED_BY(mutex_);  // stays once it is there
};

}  // namespace pagoda::client
