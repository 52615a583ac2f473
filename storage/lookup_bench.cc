// Question: how many keys a second does one core look up, leases, touches and what prefetch learns
// from them (only with SSD) included?
// Read items_per_second; the figure to hold is 2 million keys a second.
#include <benchmark/benchmark.h>

#include "storage/base/check.h"
#include "storage/testing/temp_folder.h"
#include "storage/testing/test_pages.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

constexpr int kPages = 1000;

void BM_Lookup(benchmark::State& state) {
  TieredStoreOptions options;
  options.host.capacity_bytes = 64 << 20;
  TempFolder folder;
  if (state.range(0) == 3) options.ssd.path = folder.Sub("ssd");
  const auto store = TieredStore::Open(options);
  PAGODA_CHECK(store.ok());
  TestPage like;
  like.segment_bytes = 4000;
  std::vector<RecordKey> keys;
  for (const TestPage& page : TestChain(kPages, 1, like)) {
    auto staged = (*store)->Stage(page.scope(), HeaderOf(page));
    PAGODA_CHECK(staged.ok());
    Fill(page, *staged);
    PAGODA_CHECK((*store)->Commit(*std::move(staged)).ok());
    keys.push_back(page.record());
  }
  LookupQuery query;
  query.scope = like.scope();
  query.keys = keys;
  query.touch = state.range(0) >= 1;
  if (state.range(0) >= 2) query.lease = {"session", "request", absl::Seconds(10)};
  for (auto _ : state) {
    const auto answer = (*store)->LookupPrefix(query);
    if (!answer.ok() || answer->pages.size() != keys.size()) state.SkipWithError("a miss");
  }
  state.SetItemsProcessed(state.iterations() * kPages);
}
BENCHMARK(BM_Lookup)->ArgName("peek0_touch1_lease2_learn3")->DenseRange(0, 3);

}  // namespace
}  // namespace pagoda

BENCHMARK_MAIN();
