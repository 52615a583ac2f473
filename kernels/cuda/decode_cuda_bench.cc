// Question: how near is decode attention to reading its pages at the device's memory bandwidth?
// Bound: bytes of the tiles over the bandwidth of a copy (gather) in the same run, reads and writes
// counted. "of_bound" is bound time / time, merge of the splits included; 8 kv heads of 128
// channels; by single threads and by tensor cores. On the emulated device it only shows that it
// runs.
#include <benchmark/benchmark.h>

#include <cmath>

#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/gather_cuda.h"
#include "kernels/cuda/testing/device_page.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kPageTokens = 64;

template <typename F>
double SecondsOf(F enqueue) {
  const auto call = [](void* f) { (*static_cast<F*>(f))(); };
  return DeviceMilliseconds(call, &enqueue) / 1e3;
}

// Bytes a second, read and written, of a copy of 512 MiB.
double CopyBandwidth() {
  static const double bandwidth = [] {
    const int64_t bytes = DeviceIsEmulated() ? 1 << 20 : 512 << 20;
    constexpr int32_t kPieces = 64;
    const DeviceVector<uint8_t> source(static_cast<size_t>(bytes));
    DeviceVector<uint8_t> target(static_cast<size_t>(bytes));
    std::vector<CopyPiece> pieces;
    const int64_t piece = bytes / kPieces;
    for (int32_t i = 0; i < kPieces; ++i) {
      pieces.push_back({source.data() + i * piece, target.data() + i * piece, piece});
    }
    const DeviceVector<CopyPiece> device_pieces(pieces);
    double best = 1e9;
    for (int32_t i = 0; i < (DeviceIsEmulated() ? 1 : 10); ++i) {
      best =
          std::min(best, SecondsOf([&] {
                     PAGODA_CHECK(GatherCuda({device_pieces.data(), kPieces, piece}, nullptr).ok());
                   }));
    }
    return 2 * static_cast<double>(bytes) / best;
  }();
  return bandwidth;
}

// Pages of one sequence, each in memory of its own, all with the same content.
struct Sequence {
  Sequence(Precision precision, int64_t tokens) {
    const PageShape shape{1, kKvHeads, kHeadDim, kPageTokens};
    const TestPage raw = RandomRawPage(shape, 0, 1);
    const TestPage page =
        precision == Precision::kRaw16 ? RandomRawPage(shape, 0, 1) : EncodedPage(raw, precision);
    for (int64_t i = 0; i < tokens / kPageTokens; ++i) {
      pages.emplace_back(page);
      tiles.push_back(pages.back().view().tile(0, 0));
      tiles.back().base_position = i * kPageTokens;
      tiles.back().sink_count = i == 0 ? tiles.back().sink_count : 0;
    }
    std::vector<PlaneId> planes = {PlaneId::kRaw16};
    if (precision != Precision::kRaw16) planes = {PlaneId::kKHi, PlaneId::kVHi};
    if (precision == Precision::kQ8) {
      planes.insert(planes.end(), {PlaneId::kKLo, PlaneId::kVLo});
    }
    for (const PlaneId plane : planes) {
      bytes += LayerBytes(plane, shape) * static_cast<int64_t>(tiles.size());
    }
  }
  std::vector<DevicePage> pages;
  std::vector<PageTile> tiles;
  int64_t bytes = 0;
};

void BM_Decode(benchmark::State& state, Precision precision, DecodeUnit unit) {
  const int64_t tokens = DeviceIsEmulated() ? 128 : state.range(0) << 10;
  const auto group_count = static_cast<int32_t>(state.range(1));
  const Sequence sequence(precision, tokens);
  const int32_t split_count = static_cast<int32_t>(std::min<size_t>(sequence.tiles.size(), 256));
  const size_t rows = static_cast<size_t>(kKvHeads * group_count);
  const DeviceVector<float> q(std::vector<float>(rows * kHeadDim, 0.1f));
  const DeviceVector<PageTile> tiles(sequence.tiles);
  const DeviceVector<int32_t> begin(
      std::vector<int32_t>{0, static_cast<int32_t>(sequence.tiles.size())});
  const DeviceVector<int64_t> position(std::vector<int64_t>{tokens - 1});
  DeviceVector<float> part_o(split_count * rows * kHeadDim);
  DeviceVector<float> part_lse2(split_count * rows);
  DeviceVector<float> o(rows * kHeadDim);
  DeviceVector<float> lse2(rows);
  const DecodeParams decode = {q.data(),
                               tiles.data(),
                               begin.data(),
                               position.data(),
                               part_o.data(),
                               part_lse2.data(),
                               1,
                               kKvHeads,
                               group_count,
                               kHeadDim,
                               kPageTokens,
                               split_count,
                               1 / std::sqrt(128.0f),
                               unit};
  const MergeParams merge = {part_o.data(), part_lse2.data(),           o.data(),
                             lse2.data(),   static_cast<int64_t>(rows), split_count,
                             kHeadDim};
  double seconds = 0;
  for (auto _ : state) {
    const double once = SecondsOf([&] {
      PAGODA_CHECK(DecodeAttentionCuda(decode, nullptr).ok());
      PAGODA_CHECK(MergeStatesCuda(merge, nullptr).ok());
    });
    seconds += once;
    state.SetIterationTime(once);
  }
  const double bytes = static_cast<double>(sequence.bytes);
  const double time = seconds / static_cast<double>(state.iterations());
  state.counters["GB/s"] = bytes / time / 1e9;
  state.counters["bound_GB/s"] = CopyBandwidth() / 1e9;
  state.counters["of_bound"] = bytes / CopyBandwidth() / time;
  state.SetLabel(DeviceName());
}

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"Ktokens", "gqa"})->UseManualTime()->Unit(benchmark::kMicrosecond);
  for (const int64_t kilo_tokens : {32, 128}) {
    for (const int64_t group : {1, 4, 8}) bench->Args({kilo_tokens, group});
  }
}
constexpr DecodeUnit kLanesAlone = DecodeUnit::kLanes;
constexpr DecodeUnit kTensor = DecodeUnit::kTensorCores;
BENCHMARK_CAPTURE(BM_Decode, raw16, Precision::kRaw16, kLanesAlone)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_Decode, q8, Precision::kQ8, kLanesAlone)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_Decode, q4, Precision::kQ4, kLanesAlone)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_Decode, raw16_tensor, Precision::kRaw16, kTensor)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_Decode, q8_tensor, Precision::kQ8, kTensor)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_Decode, q4_tensor, Precision::kQ4, kTensor)->Apply(Shapes);

}  // namespace
}  // namespace pagoda::kernels::cuda

BENCHMARK_MAIN();
