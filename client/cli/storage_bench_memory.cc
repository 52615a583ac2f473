// What happens in host memory: lookups, and fetches while the SSD tier works.
#include <time.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cli/interrupt.h"
#include "client/cli/percentile.h"
#include "client/cli/storage_bench.h"
#include "client/cli/store_pages.h"
#include "kernels/aligned_buffer.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/tiered_store.h"

namespace pagoda::cli {
namespace {

constexpr int64_t kLookupKeys = 1000;
constexpr int64_t kLookups = 3000;
constexpr int64_t kHotPages = 32;
constexpr absl::Duration kFetchPeriod = absl::Milliseconds(1);
constexpr char kSession[] = "bench";

double Now() { return absl::ToDoubleSeconds(SystemClock().Monotonic()); }

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class BusyBench {
 public:
  BusyBench(const StorageBenchOptions& options, const BenchProgress& progress)
      : options_(options), progress_(progress), pages_(kLargePage, /*chain_length=*/1) {}

  absl::StatusOr<BusyResult> Run() {
    TieredStoreOptions store;
    store.host.capacity_bytes = int64_t{512} << 20;
    store.ssd.path = options_.folder + "/busy";
    // About what two halves write, so that pages are deleted and their space is won back.
    store.ssd.capacity_bytes =
        std::max(static_cast<int64_t>(2 * options_.busy_seconds * options_.busy_write_rate),
                 int64_t{256} << 20);
    PAGODA_ASSIGN_OR_RETURN(store_, TieredStore::Open(store));
    for (int64_t i = 0; i < kHotPages; ++i) {
      PAGODA_RETURN_IF_ERROR(pages_.Push(*store_, static_cast<uint64_t>(i)));
      PAGODA_RETURN_IF_ERROR(store_->Pin(pages_.Key(static_cast<uint64_t>(i)), pages_.scope()));
    }
    next_page_ = kHotPages;
    double written = 0;
    for (int i = 0; i < options_.pairs; ++i) {
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      progress_(absl::StrFormat("fetches from host memory, idle and busy, pair %d of %d", i + 1,
                                options_.pairs));
      PAGODA_RETURN_IF_ERROR(store_->Flush());
      PAGODA_ASSIGN_OR_RETURN(const double idle, FetchP99());
      std::atomic<bool> stop{false};  // relaxed: only ends the loop
      const int64_t before = store_->Stats().counters.ssd_written_bytes;
      std::thread writer([&] { Write(stop); });
      const absl::StatusOr<double> busy = FetchP99();
      stop.store(true, std::memory_order_relaxed);
      writer.join();
      PAGODA_RETURN_IF_ERROR(busy.status());
      written += static_cast<double>(store_->Stats().counters.ssd_written_bytes - before);
      result_.idle_p99.push_back(idle);
      result_.busy_p99.push_back(*busy);
    }
    result_.write_rate = written / (options_.pairs * options_.busy_seconds);
    return std::move(result_);
  }

 private:
  // Looks a page up, takes it under the lease and copies it, at a steady pace for busy_seconds.
  absl::StatusOr<double> FetchP99() {
    kernels::AlignedBuffer target(pages_.stored_bytes());
    std::vector<double> seconds;
    const double begin = Now();
    for (int64_t i = 0; Now() - begin < options_.busy_seconds; ++i) {
      const RecordKey key = pages_.Key(static_cast<uint64_t>(i % kHotPages));
      const double start = Now();
      LookupQuery query;
      query.scope = pages_.scope();
      query.keys = absl::MakeConstSpan(&key, 1);
      query.lease = {kSession, "fetch", absl::Seconds(10)};
      PAGODA_ASSIGN_OR_RETURN(const LookupAnswer hit, store_->LookupPrefix(query));
      PAGODA_ASSIGN_OR_RETURN(const HostPagePtr page, store_->GetLeased(kSession, hit.lease, key));
      if (page == nullptr) return absl::InternalError("a pinned page has left host memory");
      std::byte* out = target.data();
      for (size_t s = 0; s < page->segment_count(); ++s) {
        const ByteSpan bytes = page->segment(s);
        std::memcpy(out, bytes.data(), bytes.size());
        out += bytes.size();
      }
      store_->ReleaseLease(kSession, hit.lease);
      seconds.push_back(Now() - start);
      absl::SleepFor(kFetchPeriod);
    }
    return Percentile(seconds, 99);
  }

  // New pages to SSD at the asked rate, or as fast as the disk takes them.
  void Write(const std::atomic<bool>& stop) {
    const double period = static_cast<double>(pages_.stored_bytes()) / options_.busy_write_rate;
    double due = Now();
    while (!stop.load(std::memory_order_relaxed)) {
      if (Now() < due) {
        absl::SleepFor(absl::Milliseconds(1));
        continue;
      }
      due = std::max(due + period, Now() - 1);  // what a slow disk missed is not made up for long
      const uint64_t number = next_page_++;
      if (!pages_.Push(*store_, number).ok()) continue;
      store_->PersistAsync(pages_.Key(number), pages_.scope()).IgnoreError();
    }
  }

  const StorageBenchOptions& options_;
  const BenchProgress& progress_;
  const StorePages pages_;
  std::unique_ptr<TieredStore> store_;
  uint64_t next_page_ = 0;
  BusyResult result_;
};

}  // namespace

absl::StatusOr<LookupResult> MeasureLookup(const BenchProgress& progress) {
  progress("lookups of 1,000 keys");
  TieredStoreOptions options;
  options.host.capacity_bytes = 64 << 20;
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<TieredStore> store, TieredStore::Open(options));
  const StorePages pages(kTinyPage, kLookupKeys);
  std::vector<RecordKey> keys;
  for (int64_t i = 0; i < kLookupKeys; ++i) {
    PAGODA_RETURN_IF_ERROR(pages.Push(*store, static_cast<uint64_t>(i)));
    keys.push_back(pages.Key(static_cast<uint64_t>(i)));
  }
  LookupQuery query;
  query.scope = pages.scope();
  query.keys = keys;
  query.lease = {kSession, "lookup", absl::Seconds(10)};
  const double start = ThreadSeconds();
  for (int64_t i = 0; i < kLookups; ++i) {
    PAGODA_ASSIGN_OR_RETURN(const LookupAnswer hit, store->LookupPrefix(query));
    if (static_cast<int64_t>(hit.pages.size()) != kLookupKeys) {
      return absl::InternalError("a lookup missed pages that are in host memory");
    }
  }
  return LookupResult{kLookupKeys,
                      static_cast<double>(kLookups * kLookupKeys) / (ThreadSeconds() - start)};
}

absl::StatusOr<BusyResult> MeasureBusy(const StorageBenchOptions& options,
                                       const BenchProgress& progress) {
  absl::StatusOr<BusyResult> result = BusyBench(options, progress).Run();
  std::error_code ignored;
  std::filesystem::remove_all(options.folder + "/busy", ignored);
  return result;
}

}  // namespace pagoda::cli
