// Question: how many bytes of memory does the directory take for a page, as the allocator counts
// them, and how fast is it filled as a restart fills it? Read directory_bytes_per_page; the bound
// is Directory::kBytesPerPageMax (200).
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <memory>

#include "storage/testing/many_pages.h"

namespace pagoda {
namespace {

double AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

void BM_Fill(benchmark::State& state) {
  const ManyPages pages{.page_count = static_cast<uint32_t>(state.range(0)),
                        .chain_pages = static_cast<uint32_t>(state.range(1)),
                        .in_host = state.range(2) != 0};
  for (auto _ : state) {
    const double before = AllocatedBytes();
    const auto directory = std::make_unique<Directory>();
    FillDirectory(*directory, pages);
    state.counters["directory_bytes_per_page"] =
        (AllocatedBytes() - before) / static_cast<double>(pages.page_count);
    state.counters["own_count_bytes_per_page"] =
        static_cast<double>(directory->memory_bytes()) / static_cast<double>(pages.page_count);
  }
  state.SetItemsProcessed(state.iterations() * pages.page_count);
}
// A million pages; and just above the number at which the hash table has doubled.
BENCHMARK(BM_Fill)
    ->ArgNames({"pages", "chain", "both_tiers"})
    ->ArgsProduct({{1 << 20, (1 << 20) * 7 / 8 + 1000}, {1, 20}, {0, 1}})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pagoda

BENCHMARK_MAIN();
