// How long a store with a million pages takes to open, and what memory that costs.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/interrupt.h"
#include "client/cli/storage_bench.h"
#include "client/cli/store_pages.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/directory.h"
#include "storage/ssd_tier.h"
#include "storage/tiered_store.h"

// jemalloc's, where it is linked.
extern "C" int mallctl(const char* name, void* old, size_t* old_size, void* fresh,
                       size_t fresh_size) __attribute__((weak));

namespace pagoda::cli {
namespace {

constexpr uint64_t kChainLength = 64;
constexpr int64_t kSmallHostBytes = 16 << 20;

SsdOptions SsdOf(const std::string& folder) {
  SsdOptions ssd;
  ssd.path = folder;
  ssd.capacity_bytes = int64_t{64} << 30;
  return ssd;
}

SsdPageWrite WriteOf(const StorePages& pages, const PageHeader& header,
                     const std::string& header_bytes) {
  SsdPageWrite write{DirectoryRecordOf(header), AsBytes(header_bytes), {}};
  for (const std::string& segment : pages.segments()) write.segments.push_back(AsBytes(segment));
  return write;
}

absl::Status WritePages(const std::string& folder, int64_t count, const BenchProgress& progress) {
  const StorePages pages(kTinyPage, kChainLength);
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<SsdTier> tier, SsdTier::Open(SsdOf(folder)));
  for (int64_t i = 0; i < count; ++i) {
    if (i % 100'000 == 0) {
      progress(absl::StrFormat("writing pages for the restart, %d of %d", i, count));
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
    }
    PageHeader header = pages.Header(static_cast<uint64_t>(i));
    AssignOffsets(header);
    const std::string header_bytes = EncodePageHeader(header);
    PAGODA_RETURN_IF_ERROR(tier->Put(WriteOf(pages, header, header_bytes)));
  }
  return tier->Flush();
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// By whichever allocator this program runs on.
int64_t AllocatedBytes() {
  if (mallctl != nullptr) {
    uint64_t epoch = 1;
    size_t allocated = 0;
    size_t size = sizeof(epoch);
    mallctl("epoch", &epoch, &size, &epoch, size);  // statistics as of now
    size = sizeof(allocated);
    if (mallctl("stats.allocated", &allocated, &size, nullptr, 0) == 0) {
      return static_cast<int64_t>(allocated);
    }
  }
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

absl::StatusOr<RestartResult> OpenInChild(const std::string& folder) {
  // A process of its own: what was written here has left its memory behind.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  FILE* const pipe =
      popen(absl::StrCat("'", self, "' bench storage --open-store '", folder, "'").c_str(), "r");
  if (pipe == nullptr) return absl::UnavailableError("cannot start " + self);
  RestartResult result;
  const int fields = fscanf(pipe, "%lf %ld %ld", &result.seconds, &result.rss_bytes, &result.pages);
  if (pclose(pipe) != 0 || fields != 3) {
    return absl::UnavailableError("the store could not be opened in another process");
  }
  return result;
}

}  // namespace

absl::Status OpenStoreAndReport(const std::string& folder) {
  TieredStoreOptions options;
  options.host.capacity_bytes = kSmallHostBytes;
  options.ssd = SsdOf(folder);
  const absl::Duration start = SystemClock().Monotonic();
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<TieredStore> store, TieredStore::Open(options));
  const double seconds = absl::ToDoubleSeconds(SystemClock().Monotonic() - start);
  std::printf("%f %ld %ld\n", seconds, static_cast<long>(ResidentBytes()),
              static_cast<long>(store->Stats().page_count));
  return absl::OkStatus();
}

absl::StatusOr<RestartResult> MeasureRestart(const StorageBenchOptions& options,
                                             const BenchProgress& progress) {
  const std::string folder = options.folder + "/restart";
  absl::Status written = WritePages(folder, options.restart_pages, progress);
  progress("opening the store again");
  absl::StatusOr<RestartResult> result =
      written.ok() ? OpenInChild(folder) : absl::StatusOr<RestartResult>(written);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (result.ok() && result->pages != options.restart_pages) {
    return absl::DataLossError(absl::StrFormat("%d pages written, %d there after the restart",
                                               options.restart_pages, result->pages));
  }
  return result;
}

absl::StatusOr<DirectoryResult> MeasureDirectory(const StorageBenchOptions& options,
                                                 const BenchProgress& progress) {
  progress("memory of the directory");
  const StorePages pages(kTinyPage, kChainLength);
  const int64_t before = AllocatedBytes();
  Directory directory;
  for (int64_t i = 0; i < options.restart_pages; ++i) {
    PageHeader header = pages.Header(static_cast<uint64_t>(i));
    AssignOffsets(header);
    PAGODA_RETURN_IF_ERROR(
        directory.AddSsd(DirectoryRecordOf(header), absl::ZeroDuration()).status());
  }
  DirectoryResult result;
  result.pages = directory.page_count();
  result.bytes_per_page =
      static_cast<double>(AllocatedBytes() - before) / static_cast<double>(result.pages);
  return result;
}

}  // namespace pagoda::cli
