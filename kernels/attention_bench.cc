// Question: how far is prefill attention from peak FMA? Decode has a command of its own, `pagoda
// bench attention`, which holds it against a plain read.
//
// Rows     BM_Prefill/<precision>/<head_dim>/<group>/<query_count>: causal, over as many tokens;
//          items are floating-point operations.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/testing/random_page.h"

namespace pagoda::kernels {

namespace {

// One segment run per plane, as a daemon's slabs hold them: pages of one layer and one head, copies
// of a few distinct ones.
struct Pages {
  std::vector<TestPage> pages;
  std::vector<PageTile> tiles;
  int64_t bytes = 0;
};

Pages MakePages(Precision precision, int32_t head_dim, int64_t bytes) {
  constexpr int64_t kDistinct = 8;
  const PageShape shape{1, 1, head_dim, 64};
  Pages made;
  while (made.bytes < bytes) {
    const auto index = static_cast<int64_t>(made.pages.size());
    if (index < kDistinct) {
      TestPage raw = RandomRawPage(shape, 64 * (index + 1), static_cast<uint32_t>(index));
      made.pages.push_back(precision == Precision::kRaw16 ? std::move(raw)
                                                          : EncodedPage(raw, precision));
    } else {
      TestPage copy;
      copy.shape = shape;
      copy.header = made.pages[index % kDistinct].header;
      copy.segments = AllocateSegments(copy.header);
      for (size_t i = 0; i < copy.segments.size(); ++i) {
        const ByteSpan source = made.pages[index % kDistinct].segments[i].span();
        std::copy(source.begin(), source.end(), copy.segments[i].data());
      }
      made.pages.push_back(std::move(copy));
    }
    for (const SegmentEntry& segment : made.pages.back().header.segments) {
      made.bytes += segment.length;
    }
  }
  int64_t position = 0;
  for (const TestPage& page : made.pages) {
    made.tiles.push_back(page.view().tile(0, 0));
    made.tiles.back().base_position = position;
    position += shape.page_tokens;
  }
  return made;
}

struct Call {
  Call(const Pages& pages, int32_t head_dim, int32_t group_count, int32_t query_count) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    q.resize(static_cast<size_t>(query_count * group_count * head_dim));
    for (float& x : q) x = normal(random);
    out.resize(q.size());
    params.q = q.data();
    params.out = out.data();
    params.q_stride = params.out_stride = int64_t{group_count} * head_dim;
    params.query_count = query_count;
    params.group_count = group_count;
    params.head_dim = head_dim;
    params.page_tokens = 64;
    params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    params.pages = pages.tiles;
  }
  std::vector<float> q;
  std::vector<float> out;
  AttentionParams params;
  AttentionScratch scratch;
};

void BM_Prefill(benchmark::State& state, Precision precision) {
  const auto head_dim = static_cast<int32_t>(state.range(0));
  const auto group_count = static_cast<int32_t>(state.range(1));
  const auto query_count = static_cast<int32_t>(state.range(2));
  const int64_t page_bytes = precision == Precision::kRaw16 ? 64 * head_dim * 4
                             : precision == Precision::kQ8  ? 64 * head_dim * 2
                                                            : 64 * head_dim;
  const Pages pages = MakePages(precision, head_dim, page_bytes * (query_count / 64));
  Call call(pages, head_dim, group_count, query_count);
  for (auto _ : state) {
    if (!AttentionCpu(call.params, call.scratch).ok()) state.SkipWithError("attention failed");
    benchmark::DoNotOptimize(call.out.data());
  }
  // Causal: half of the square, a multiplication and an addition for each of QK and PV.
  const double flops = 0.5 * query_count * (query_count + 1.0) * group_count * head_dim * 4;
  state.counters["flops"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void PrefillShapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"dim", "group", "queries"})->Unit(benchmark::kMillisecond);
  bench->Args({64, 3, 256})->Args({64, 3, 2560})->Args({128, 4, 1024});
}

BENCHMARK_CAPTURE(BM_Prefill, raw16, Precision::kRaw16)->Apply(PrefillShapes);
BENCHMARK_CAPTURE(BM_Prefill, q8, Precision::kQ8)->Apply(PrefillShapes);
BENCHMARK_CAPTURE(BM_Prefill, q4, Precision::kQ4)->Apply(PrefillShapes);

}  // namespace
}  // namespace pagoda::kernels

BENCHMARK_MAIN();
