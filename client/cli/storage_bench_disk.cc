// Reads and writes of the SSD tier through the store, against the disk alone.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/disk_probe.h"
#include "client/cli/interrupt.h"
#include "client/cli/storage_bench.h"
#include "client/cli/store_pages.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/ssd_folder.h"
#include "storage/tiered_store.h"

namespace pagoda::cli {
namespace {

constexpr int64_t kFetchPages = 64;

double Now() { return absl::ToDoubleSeconds(SystemClock().Monotonic()); }

// For folders that take no direct I/O; elsewhere there is nothing to drop.
void DropPageCache(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
}

void DropFromHost(TieredStore& store) {
  PageFilter host;
  host.tier = TierKind::kHost;
  store.Evict(host);
}

// Loads the pages, all asked at once; the first error.
absl::Status Load(TieredStore& store, const StorePages& pages, absl::Span<const uint64_t> numbers) {
  absl::BlockingCounter left(static_cast<int>(numbers.size()));
  absl::Mutex mutex;
  absl::Status first;
  for (const uint64_t number : numbers) {
    store.LoadAsync(pages.Key(number), pages.scope(), [&](absl::StatusOr<HostPagePtr> page) {
      {
        absl::MutexLock lock(&mutex);
        first.Update(page.status());
      }
      left.DecrementCount();
    });
  }
  left.Wait();
  return first;
}

class DiskBench {
 public:
  DiskBench(const StorageBenchOptions& options, const BenchProgress& progress)
      : options_(options), progress_(progress), pages_(kLargePage, /*chain_length=*/1) {}

  absl::StatusOr<DiskResult> Run() {
    TieredStoreOptions store;
    store.host.capacity_bytes = options_.disk_pages * pages_.stored_bytes() * 3 / 2;
    store.ssd.path = options_.folder + "/store";
    store.ssd.capacity_bytes = options_.disk_pages * pages_.stored_bytes() * 4;
    store.write_queue_pages_max = options_.disk_pages;
    PAGODA_ASSIGN_OR_RETURN(store_, TieredStore::Open(store));
    result_.depth = store.loader_threads;
    ProbeLoad load;
    load.depth = result_.depth;
    load.file_bytes = options_.disk_pages * load.block_bytes;
    load.read_bytes = kFetchPages * load.block_bytes;
    DiskProbe probe(options_.folder, load);
    result_.tool = probe.tool();
    PAGODA_ASSIGN_OR_RETURN(const SsdFolder folder, PrepareSsdFolder(options_.folder));
    result_.direct_io = folder.direct_io;
    for (int i = 0; i < options_.pairs; ++i) {
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      progress_(
          absl::StrFormat("writing, pair %d of %d (%s)", i + 1, options_.pairs, probe.tool()));
      PAGODA_ASSIGN_OR_RETURN(const double bare, probe.SequentialWrite());
      PAGODA_ASSIGN_OR_RETURN(const double ours, Write(i));
      result_.write.probes.push_back(bare);
      result_.write.rates.push_back(ours);
    }
    for (int i = 0; i < options_.pairs; ++i) {
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      progress_(
          absl::StrFormat("cold reads, pair %d of %d (%s)", i + 1, options_.pairs, probe.tool()));
      PAGODA_ASSIGN_OR_RETURN(const double bare, probe.RandomRead());
      PAGODA_ASSIGN_OR_RETURN(const double ours, Read());
      result_.read.probes.push_back(bare);
      result_.read.rates.push_back(ours);
    }
    return std::move(result_);
  }

 private:
  double total_bytes(int64_t count) const {
    return static_cast<double>(count * pages_.stored_bytes());
  }

  // All pages anew, from their queueing to the end of the flush.
  absl::StatusOr<double> Write(int round) {
    store_->Evict(PageFilter());
    PAGODA_RETURN_IF_ERROR(store_->Flush());
    first_ = static_cast<uint64_t>(round * options_.disk_pages);
    for (int64_t i = 0; i < options_.disk_pages; ++i) {
      PAGODA_RETURN_IF_ERROR(pages_.Push(*store_, first_ + i));
    }
    const double start = Now();
    for (int64_t i = 0; i < options_.disk_pages; ++i) {
      PAGODA_RETURN_IF_ERROR(store_->PersistAsync(pages_.Key(first_ + i), pages_.scope()));
    }
    PAGODA_RETURN_IF_ERROR(store_->Flush());
    return total_bytes(options_.disk_pages) / (Now() - start);
  }

  // 64 pages that are nowhere in memory.
  absl::StatusOr<double> Read() {
    DropFromHost(*store_);
    DropPageCache(options_.folder + "/store");
    std::vector<uint64_t> numbers(static_cast<size_t>(options_.disk_pages));
    std::iota(numbers.begin(), numbers.end(), first_);
    std::shuffle(numbers.begin(), numbers.end(), random_);
    const auto count = static_cast<size_t>(std::min(kFetchPages, options_.disk_pages));
    const double start = Now();
    PAGODA_RETURN_IF_ERROR(Load(*store_, pages_, absl::MakeSpan(numbers).subspan(0, count)));
    return total_bytes(static_cast<int64_t>(count)) / (Now() - start);
  }

  const StorageBenchOptions& options_;
  const BenchProgress& progress_;
  const StorePages pages_;
  std::unique_ptr<TieredStore> store_;
  uint64_t first_ = 0;
  std::mt19937_64 random_{1};
  DiskResult result_;
};

}  // namespace

absl::StatusOr<DiskResult> MeasureDisk(const StorageBenchOptions& options,
                                       const BenchProgress& progress) {
  absl::StatusOr<DiskResult> result = DiskBench(options, progress).Run();
  std::error_code ignored;
  std::filesystem::remove_all(options.folder + "/store", ignored);
  return result;
}

}  // namespace pagoda::cli
