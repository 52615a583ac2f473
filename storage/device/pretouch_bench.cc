// Question: how much sooner is an arena there when several threads make its pages? Read
// bytes_per_second; the bound is what one thread gets times the cores, and never more than memory
// can be zeroed.
#include <benchmark/benchmark.h>

#include "storage/device/pretouch.h"
#include "storage/device/testing/host_arena.h"

namespace pagoda {
namespace {

constexpr int64_t kBytes = int64_t{256} << 20;

void BM_Pretouch(benchmark::State& state) {
  const bool huge = state.range(1) != 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto arena = std::make_unique<HostArena>(kBytes);
    const MutableByteSpan range(arena->data(), kBytes);
    if (huge && !AdviseHugePages(range).ok()) state.SkipWithError("no huge pages");
    state.ResumeTiming();
    const PretouchOptions options{.threads = static_cast<int>(state.range(0)),
                                  .slice_bytes = int64_t{16} << 20};
    if (!Pretouch({range}, options).ok()) state.SkipWithError("Pretouch failed");
    state.PauseTiming();
    arena.reset();
    state.ResumeTiming();
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}
BENCHMARK(BM_Pretouch)
    ->ArgNames({"threads", "huge"})
    ->ArgsProduct({{1, 2, 4}, {0, 1}})
    ->UseRealTime();

}  // namespace
}  // namespace pagoda

BENCHMARK_MAIN();
