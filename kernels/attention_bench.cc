// Question: how far is attention from the machine's limits? Decode against the plain read of the
// same memory by one thread (a counter beside each row: of_read, measured in the same run), prefill
// against peak FMA (items are floating-point operations).
//
// Time     processor time of the thread, so that other work on the machine shows less.
// Rows     BM_Decode/<precision>/<head_dim>/<group>: pages of 64 tokens, more than the caches hold
//          (bytes = what the layout stores for the tokens read); ns_token is per token and kv head.
//          shuffled = 1 visits the pages in random order.
//          BM_Prefill/<precision>/<head_dim>/<group>/<query_count>: causal, over as many tokens.
// Size     PAGODA_BENCH_MIB of pages per row; the default of 8 is for a quick look, 512 for
// results.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "kernels/attention.h"
#include "kernels/testing/random_page.h"

namespace pagoda::kernels {

int64_t decode_bytes = int64_t{8} << 20;  // set once, in main

namespace {

// One segment run per plane, as a daemon's slabs hold them: pages of one layer and one head, copies
// of a few distinct ones.
struct Pages {
  std::vector<TestPage> pages;
  std::vector<PageTile> tiles;
  int64_t bytes = 0;
};

Pages MakePages(Precision precision, int32_t head_dim, int64_t bytes, bool shuffled) {
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
  std::vector<size_t> order(made.pages.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (shuffled) std::shuffle(order.begin(), order.end(), std::mt19937(1));
  int64_t position = 0;
  for (const size_t i : order) {
    made.tiles.push_back(made.pages[i].view().tile(0, 0));
    made.tiles.back().base_position = position;
    position += shape.page_tokens;
  }
  return made;
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Bytes per second of one thread that adds up the pages' segments, fetching the next one ahead as
// the kernels do: the bound of a kernel that only reads.
double ReadBandwidth(const Pages& pages) {
  std::vector<std::pair<const uint64_t*, int64_t>> segments;
  int64_t bytes = 0;
  for (const TestPage& page : pages.pages) {
    for (size_t i = 0; i < page.segments.size(); ++i) {
      segments.emplace_back(reinterpret_cast<const uint64_t*>(page.segments[i].data()),
                            int64_t{page.header.segments[i].length} / 8);
      bytes += segments.back().second * 8;
    }
  }
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double start = ThreadSeconds();
    uint64_t sums[8] = {};
    for (size_t i = 0; i < segments.size(); ++i) {
      const auto [words, count] = segments[i];
      const uint64_t* next = segments[std::min(i + 1, segments.size() - 1)].first;
      for (int64_t w = 0; w + 8 <= count; w += 8) {
        __builtin_prefetch(next + w, 0, 2);
        for (int64_t j = 0; j < 8; ++j) sums[j] += words[w + j];
      }
    }
    benchmark::DoNotOptimize(sums);
    best = std::max(best, static_cast<double>(bytes) / (ThreadSeconds() - start));
  }
  return best;
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

void BM_Decode(benchmark::State& state, Precision precision) {
  const auto head_dim = static_cast<int32_t>(state.range(0));
  const auto group_count = static_cast<int32_t>(state.range(1));
  const Pages pages = MakePages(precision, head_dim, decode_bytes, state.range(2) != 0);
  Call call(pages, head_dim, group_count, 1);
  const auto token_count = static_cast<int64_t>(pages.tiles.size()) * 64;
  call.params.first_position = token_count;
  const double read = ReadBandwidth(pages);
  const double start = ThreadSeconds();
  for (auto _ : state) {
    if (!AttentionCpu(call.params, call.scratch).ok()) state.SkipWithError("attention failed");
    benchmark::DoNotOptimize(call.out.data());
  }
  const double per_call = (ThreadSeconds() - start) / static_cast<double>(state.iterations());
  state.SetBytesProcessed(state.iterations() * pages.bytes);
  state.counters["ns_token"] = per_call * 1e9 / static_cast<double>(token_count);
  state.counters["of_read"] = static_cast<double>(pages.bytes) / per_call / read;
  state.counters["read_GBs"] = read * 1e-9;
}

void BM_Prefill(benchmark::State& state, Precision precision) {
  const auto head_dim = static_cast<int32_t>(state.range(0));
  const auto group_count = static_cast<int32_t>(state.range(1));
  const auto query_count = static_cast<int32_t>(state.range(2));
  const int64_t page_bytes = precision == Precision::kRaw16 ? 64 * head_dim * 4
                             : precision == Precision::kQ8  ? 64 * head_dim * 2
                                                            : 64 * head_dim;
  const Pages pages = MakePages(precision, head_dim, page_bytes * (query_count / 64), false);
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

void DecodeShapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"dim", "group", "shuffled"});
  for (const int64_t head_dim : {64, 128}) {
    for (const int64_t group : {1, 3, 4, 8}) bench->Args({head_dim, group, 0});
    bench->Args({head_dim, 1, 1});
  }
}
void PrefillShapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"dim", "group", "queries"})->Unit(benchmark::kMillisecond);
  bench->Args({64, 3, 256})->Args({64, 3, 2560})->Args({128, 4, 1024});
}

BENCHMARK_CAPTURE(BM_Decode, raw16, Precision::kRaw16)->Apply(DecodeShapes);
BENCHMARK_CAPTURE(BM_Decode, q8, Precision::kQ8)->Apply(DecodeShapes);
BENCHMARK_CAPTURE(BM_Decode, q4, Precision::kQ4)->Apply(DecodeShapes);
BENCHMARK_CAPTURE(BM_Prefill, raw16, Precision::kRaw16)->Apply(PrefillShapes);
BENCHMARK_CAPTURE(BM_Prefill, q8, Precision::kQ8)->Apply(PrefillShapes);
BENCHMARK_CAPTURE(BM_Prefill, q4, Precision::kQ4)->Apply(PrefillShapes);

}  // namespace
}  // namespace pagoda::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    int64_t mib = 0;
    if (!absl::StartsWith(argument, "--mib=") || !absl::SimpleAtoi(argument.substr(6), &mib) ||
        mib < 1 || mib > 65536) {
      std::fprintf(stderr, "unknown argument %s; beside google-benchmark's there is --mib=N\n",
                   argv[i]);
      return 1;
    }
    pagoda::kernels::decode_bytes = mib << 20;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
