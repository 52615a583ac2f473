// Question: how fast does a page go to SSD and come back, against the disk itself?
// Read bytes_per_second; the bound is fio on the same folder with the page size as block size.
// Set PAGODA_BENCH_DIR to a folder on the disk to measure; without it the temporary folder is used.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "storage/base/check.h"
#include "storage/host_page.h"
#include "storage/ssd_tier.h"
#include "storage/testing/temp_folder.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

constexpr int kPages = 64;
constexpr int kThreadsMax = 4;

// A page in host memory, as the store hands it over and takes it back: aligned and padded.
StagedPage MakePage(const std::shared_ptr<HostTier>& host, uint32_t token, int64_t page_bytes) {
  TestPage spec = TestRoot(token);
  spec.segment_bytes = static_cast<uint32_t>(page_bytes / 2);
  auto page = StagedPage::Create(host, HeaderOf(spec));
  PAGODA_CHECK(page.ok());
  Fill(spec, *page);
  return *std::move(page);
}

class Bench {
 public:
  explicit Bench(int64_t page_bytes) {
    HostTierOptions host;
    host.capacity_bytes = int64_t{512} << 20;
    host_ = *HostTier::Create(host);
    SsdOptions options;
    const char* folder = std::getenv("PAGODA_BENCH_DIR");
    options.path = folder != nullptr ? std::string(folder) + "/ssd-bench" : folder_.Sub("ssd");
    std::filesystem::remove_all(options.path);
    auto opened = SsdTier::Open(options);
    PAGODA_CHECK(opened.ok());
    tier_ = *std::move(opened);
    for (uint32_t i = 1; i <= kPages; ++i) {
      auto page = StagedPage::Freeze(MakePage(host_, i, page_bytes));
      PAGODA_CHECK(page.ok());
      pages_.push_back(*std::move(page));
    }
    for (int i = 0; i < kThreadsMax; ++i) targets_.push_back(MakePage(host_, 1, page_bytes));
  }
  ~Bench() {
    const std::string path = tier_->path();
    tier_ = nullptr;
    std::filesystem::remove_all(path);
  }
  SsdTier& tier() { return *tier_; }
  int64_t page_bytes() const { return pages_[0]->bytes(); }
  absl::Status Write(int64_t i) {
    const HostPage& page = *pages_[i % kPages];
    SsdPageWrite write{DirectoryRecordOf(page.header()), page.header_bytes(), {}};
    for (size_t at = 0; at < page.segment_count(); ++at) {
      write.segments.push_back(page.padded_segment(at));
    }
    return tier_->Put(write);
  }
  absl::Status Read(int64_t i, int reader_index) {
    const PageHeader& header = pages_[i % kPages]->header();
    const auto reader = tier_->ReadPage(header.record, header.scope, header.identity);
    if (!reader.ok()) return reader.status();
    const StagedPage& target = targets_[reader_index];
    std::vector<MutableByteSpan> spans;
    for (size_t at = 0; at < target.segment_count(); ++at) {
      spans.push_back(target.padded_segment(at));
    }
    return reader->ReadAll(spans);
  }

 private:
  TempFolder folder_;
  std::shared_ptr<HostTier> host_;
  std::unique_ptr<SsdTier> tier_;
  std::vector<HostPagePtr> pages_;
  std::vector<StagedPage> targets_;  // one a reader
};

std::unique_ptr<Bench> bench;  // of the case that runs

void OpenEmpty(const benchmark::State& state) {
  bench = std::make_unique<Bench>(state.range(0) << 10);
}
void OpenFull(const benchmark::State& state) {
  OpenEmpty(state);
  for (int64_t i = 0; i < kPages; ++i) PAGODA_CHECK(bench->Write(i).ok());
  PAGODA_CHECK(bench->tier().Flush().ok());
}
void Close(const benchmark::State&) { bench = nullptr; }

// Threads stand for the store's writers and loaders.
void BM_Write(benchmark::State& state) {
  int64_t i = state.thread_index();
  for (auto _ : state) {
    if (!bench->Write(i).ok()) state.SkipWithError("Put failed");
    i += state.threads();
  }
  if (!bench->tier().Flush().ok()) state.SkipWithError("Flush failed");
  state.SetBytesProcessed(state.iterations() * bench->page_bytes());
}

void BM_Read(benchmark::State& state) {
  int64_t i = state.thread_index();
  for (auto _ : state) {
    // No order that a disk could guess.
    if (!bench->Read(i += 37, state.thread_index()).ok()) state.SkipWithError("Read failed");
  }
  state.SetBytesProcessed(state.iterations() * bench->page_bytes());
}

void Cases(benchmark::internal::Benchmark* cases) {
  cases->ArgName("page_kib")->Arg(512)->Arg(2048)->Threads(1)->Threads(2)->Threads(kThreadsMax);
  cases->UseRealTime()->Teardown(Close);
}
BENCHMARK(BM_Write)->Apply(Cases)->Setup(OpenEmpty);
BENCHMARK(BM_Read)->Apply(Cases)->Setup(OpenFull);

}  // namespace
}  // namespace pagoda

BENCHMARK_MAIN();
