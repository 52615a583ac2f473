// Question: what does encoding a page cost the daemon, and decoding it an engine that keeps its own
// kernels? Bytes are those of the raw16 page; the bound is one read of them.
#include <benchmark/benchmark.h>

#include "kernels/codec.h"
#include "kernels/testing/random_page.h"
#include "storage/base/crc32c.h"

namespace pagoda::kernels {
namespace {

int64_t RawBytes(const PageShape& shape) {
  return LayerBytes(PlaneId::kRaw16, shape) * shape.layer_count;
}
PageShape ShapeOf(const benchmark::State& state) {
  return {static_cast<int32_t>(state.range(0)), static_cast<int32_t>(state.range(1)),
          static_cast<int32_t>(state.range(2)), 64};
}
void Report(benchmark::State& state, const PageShape& shape) {
  state.SetBytesProcessed(state.iterations() * RawBytes(shape));
  state.SetItemsProcessed(state.iterations() * RawBytes(shape) / 2);  // elements
}

void BM_EncodePage(benchmark::State& state) {
  const PageShape shape = ShapeOf(state);
  const TestPage raw = RandomRawPage(shape, 64, 1);
  TestPage page = EncodedPage(raw, Precision::kQ8);
  const auto source = raw.spans();
  const auto target = page.mutable_spans();
  for (auto _ : state) {
    if (!EncodePage(raw.header, source, page.header, target).ok()) {
      state.SkipWithError("encode failed");
    }
  }
  Report(state, shape);
}

void BM_DecodePage(benchmark::State& state, Precision precision) {
  const PageShape shape = ShapeOf(state);
  const TestPage page = EncodedPage(RandomRawPage(shape, 64, 1), precision);
  const PageView view = page.view();
  std::vector<float> k(static_cast<size_t>(shape.page_tokens * shape.head_dim));
  std::vector<float> v(k.size());
  for (auto _ : state) {
    for (int32_t layer = 0; layer < shape.layer_count; ++layer) {
      for (int32_t head = 0; head < shape.head_count; ++head) {
        if (!DecodeTileCpu(view.tile(layer, head), shape, k.data(), v.data()).ok()) {
          state.SkipWithError("decode failed");
        }
        benchmark::DoNotOptimize(k.data());
      }
    }
  }
  Report(state, shape);
}

// What verification adds when a page is read from a disk or a peer.
void BM_Checksum(benchmark::State& state) {
  const PageShape shape = ShapeOf(state);
  TestPage raw = RandomRawPage(shape, 64, 1);
  const auto spans = raw.spans();
  for (auto _ : state) FillChecksums(spans, raw.header);
  Report(state, shape);
}

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"layers", "heads", "dim"})->Unit(benchmark::kMicrosecond);
  bench->Args({30, 3, 64})->Args({4, 8, 128});
}
BENCHMARK(BM_EncodePage)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_DecodePage, q8, Precision::kQ8)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_DecodePage, q4, Precision::kQ4)->Apply(Shapes);
BENCHMARK(BM_Checksum)->Apply(Shapes);

}  // namespace
}  // namespace pagoda::kernels

BENCHMARK_MAIN();
