// Question: how fast does a page go to SSD and come back, against the disk itself?
// Read bytes_per_second; the bound is fio on the same folder with the page size as block size.
// Set PAGODA_BENCH_DIR to a folder on the disk to measure; without it the temporary folder is used.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "storage/base/crc32c.h"
#include "storage/ssd_tier.h"
#include "storage/testing/temp_folder.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

constexpr int kPages = 64;

// One page of two segments, of `page_bytes` together.
struct BenchPage {
  PageHeader header;
  std::string header_bytes;
  std::vector<std::string> segments;

  BenchPage(uint32_t token, int64_t page_bytes) {
    TestPage spec = TestRoot(token);
    spec.segment_bytes = static_cast<uint32_t>(page_bytes / 2);
    header = HeaderOf(spec);
    for (size_t i = 0; i < header.segments.size(); ++i) {
      segments.push_back(SegmentBytes(spec, header, i));
      header.segments[i].crc32c = Crc32c(AsBytes(segments[i]));
    }
    header_bytes = EncodePageHeader(header);
  }
  SsdPageWrite write() const {
    SsdPageWrite page{DirectoryRecordOf(header), AsBytes(header_bytes), {}};
    for (const std::string& segment : segments) page.segments.push_back(AsBytes(segment));
    return page;
  }
};

class Bench {
 public:
  explicit Bench(int64_t page_bytes) {
    SsdOptions options;
    const char* folder = std::getenv("PAGODA_BENCH_DIR");
    options.path = folder != nullptr ? std::string(folder) + "/ssd-bench" : folder_.Sub("ssd");
    std::filesystem::remove_all(options.path);
    auto opened = SsdTier::Open(options);
    PAGODA_CHECK(opened.ok());
    tier_ = *std::move(opened);
    for (uint32_t i = 1; i <= kPages; ++i) pages_.emplace_back(i, page_bytes);
  }
  ~Bench() {
    const std::string path = tier_->path();
    tier_ = nullptr;
    std::filesystem::remove_all(path);
  }
  SsdTier& tier() { return *tier_; }
  const BenchPage& page(int64_t i) const { return pages_[i % kPages]; }

 private:
  TempFolder folder_;
  std::unique_ptr<SsdTier> tier_;
  std::vector<BenchPage> pages_;
};

void BM_Write(benchmark::State& state) {
  Bench bench(state.range(0) << 10);
  int64_t i = 0;
  for (auto _ : state) {
    if (!bench.tier().Put(bench.page(i++).write()).ok()) state.SkipWithError("Put failed");
  }
  if (!bench.tier().Flush().ok()) state.SkipWithError("Flush failed");
  state.SetBytesProcessed(state.iterations() * bench.page(0).header.stored_bytes());
}
BENCHMARK(BM_Write)->ArgName("page_kib")->Arg(512)->Arg(2048)->UseRealTime();

void BM_Read(benchmark::State& state) {
  Bench bench(state.range(0) << 10);
  for (int64_t i = 0; i < kPages; ++i) PAGODA_CHECK(bench.tier().Put(bench.page(i).write()).ok());
  PAGODA_CHECK(bench.tier().Flush().ok());
  std::string target(bench.page(0).segments[1].size(), '\0');
  int64_t i = 0;
  for (auto _ : state) {
    const BenchPage& page = bench.page(i += 37);  // no order that a disk could guess
    const auto reader =
        bench.tier().ReadPage(page.header.record, page.header.scope, page.header.identity);
    if (!reader.ok()) state.SkipWithError("ReadPage failed");
    for (uint32_t at = 0; reader.ok() && at < page.segments.size(); ++at) {
      const MutableByteSpan bytes(reinterpret_cast<std::byte*>(target.data()),
                                  page.segments[at].size());
      if (!reader->ReadSegment(at, bytes).ok()) state.SkipWithError("ReadSegment failed");
    }
  }
  state.SetBytesProcessed(state.iterations() * bench.page(0).header.stored_bytes());
}
BENCHMARK(BM_Read)->ArgName("page_kib")->Arg(512)->Arg(2048)->UseRealTime();

}  // namespace
}  // namespace pagoda

BENCHMARK_MAIN();
