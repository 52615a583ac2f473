// Question: how long does a restart with a full index take, and how much memory is resident at its
// end? Bounds: 10 seconds and 300 MB for a million pages.
// Usage: restart_bench [PAGES]    PAGODA_BENCH_DIR as ssd_bench
// The index is written first, in a process of its own, so that its memory is not counted.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "storage/base/check.h"
#include "storage/ssd_index.h"
#include "storage/testing/temp_folder.h"
#include "storage/testing/test_pages.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

TieredStoreOptions Options(const std::string& path, int64_t pages) {
  TieredStoreOptions options;
  options.host.capacity_bytes = int64_t{16} << 20;
  options.ssd.path = path;
  options.ssd.capacity_bytes = 2 * pages * 5 * kExtentAlignBytes;
  return options;
}

// Records of chains of a hundred pages, in sparse files: a restart does not look at page bytes.
void WriteIndex(const std::string& path, int64_t pages) {
  constexpr int64_t kFileBytes = int64_t{1} << 30;
  const SsdOptions options = Options(path, pages).ssd;
  std::filesystem::create_directories(path + "/extents");
  auto index = SsdIndex::Open(options);
  PAGODA_CHECK(index.ok());
  Extent next{1, 0, 0};
  TestPage page;
  for (int64_t i = 0; i < pages; ++i) {
    page = i % 100 == 0 ? TestRoot(static_cast<uint32_t>(i)) : page.Child(static_cast<uint32_t>(i));
    DirectoryRecord record = DirectoryRecordOf(HeaderOf(page));
    next.bytes = record.bytes;
    if (next.end() > kFileBytes) next = {next.file + 1, 0, record.bytes};
    record.extent = next;
    next.offset = next.end();
    PAGODA_CHECK((*index)->Put(record).ok());
    if (i % 20000 == 0) PAGODA_CHECK((*index)->Flush().ok());
  }
  PAGODA_CHECK((*index)->Flush().ok());
  for (uint32_t file = 1; file <= next.file; ++file) {
    char name[32];
    std::snprintf(name, sizeof(name), "/extents/%06u.extents", file);
    std::ofstream(path + name).close();
    std::filesystem::resize_file(path + name, kFileBytes);
  }
}

int64_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  in >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// All pages are one tenant's. Who looks up others meanwhile should not notice.
void DeleteTenant(TieredStore& store) {
  std::atomic<bool> done{false};
  double longest = 0;
  std::thread reader([&] {
    const TestPage stranger = TestRoot(0xFFFFFFFF);
    const RecordKey key = stranger.record();
    while (!done) {
      const auto begin = std::chrono::steady_clock::now();
      LookupQuery query;
      query.scope = stranger.scope();
      query.keys = absl::MakeConstSpan(&key, 1);
      PAGODA_CHECK(store.LookupPrefix(query).ok());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      longest = std::max(longest, took.count());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  PageFilter filter;
  filter.scope = TestRoot(0).scope();
  const EvictResult evicted = store.Evict(filter);
  const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin;
  PAGODA_CHECK(store.Flush().ok());
  const std::chrono::duration<double> flushed = std::chrono::steady_clock::now() - begin;
  done = true;
  reader.join();
  std::printf(
      "tenant deleted: %lld pages gone in %.2f s, from the disk in %.2f s, longest lookup "
      "of another meanwhile %.1f ms\n",
      static_cast<long long>(evicted.page_count), gone.count(), flushed.count(), longest * 1e3);
}

int Run(int64_t pages) {
  const TempFolder temporary;
  const char* folder = std::getenv("PAGODA_BENCH_DIR");
  const std::string path =
      folder != nullptr ? std::string(folder) + "/restart-bench" : temporary.Sub("ssd");
  std::filesystem::remove_all(path);
  const pid_t writer = fork();
  PAGODA_CHECK(writer >= 0);
  if (writer == 0) {
    WriteIndex(path, pages);
    _exit(0);
  }
  int status = 0;
  PAGODA_CHECK(waitpid(writer, &status, 0) == writer && status == 0);
  const int64_t before = ResidentBytes();
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu_begin = std::clock();
  auto store = TieredStore::Open(Options(path, pages));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  PAGODA_CHECK(store.ok());
  PAGODA_CHECK((*store)->Stats().ssd.page_count == pages);
  const double cpu = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  std::printf("pages %lld: restart %.2f s, %.2f CPU s, resident %.0f MB (%.0f MB before)\n",
              static_cast<long long>(pages), took.count(), cpu, ResidentBytes() / 1e6,
              before / 1e6);
  DeleteTenant(**store);
  store->reset();
  std::filesystem::remove_all(path);
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  // Run as a test it gets an option of the benchmark library, and a small number will do.
  const long long pages = argc > 1 ? std::atoll(argv[1]) : 1000000;
  return pagoda::Run(pages > 0 ? pages : 1000);
}
