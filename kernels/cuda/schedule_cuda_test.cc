// Goal: no result depends on the order in which the threads of a block run, and no kernel has a
// data race. Method: every kernel on tiny shapes, threads in ascending, descending and shuffled
// order, on two OS threads; results equal bit for bit. Under ThreadSanitizer this is the race
// check.
#include <gtest/gtest.h>

#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/gather_cuda.h"
#include "kernels/cuda/page_score_cuda.h"
#include "kernels/cuda/position_shift_cuda.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/testing/decode_case.h"

namespace pagoda::kernels::cuda {
namespace {

// Calls `run` under several schedules; returns what it gave, which must always be the same.
template <typename F>
auto UnderSchedules(F run) {
  simt::LaunchOptions() = {0, 2};
  const auto first = run();
  for (const unsigned schedule : {1u, 7u}) {
    simt::LaunchOptions().schedule = schedule;
    EXPECT_EQ(run(), first) << "schedule " << schedule;
  }
  simt::LaunchOptions() = {};
  return first;
}

TEST(ScheduleCudaTest, Decode) {
  struct Shape {
    int32_t head_dim;
    int32_t group_count;
    DecodeUnit unit;
  };
  for (const Shape& s :
       {Shape{64, 1, DecodeUnit::kLanes}, Shape{80, 3, DecodeUnit::kLanes},
        Shape{64, 3, DecodeUnit::kTensorCores}, Shape{80, 9, DecodeUnit::kTensorCores}}) {
    SCOPED_TRACE(testing::Message() << s.head_dim << ", heads " << s.group_count);
    const PageShape shape{1, 1, s.head_dim, 32};
    const DecodePages pages(shape, {Precision::kQ4, Precision::kQ8, Precision::kRaw16}, 3, 1);
    const auto run = [&] {
      DecodeCase decode(pages, {70}, s.group_count, 2);
      const States states = decode.RunOnDevice(s.group_count, 2, s.unit);
      decode.ExpectWithinBound(states, s.group_count, s.unit);
      return states.o;
    };
    UnderSchedules(run);
  }
}

TEST(ScheduleCudaTest, EncodeAndDequantize) {
  const PageShape shape{1, 1, 80, 32};
  TestPage raw = RandomRawPage(shape, 0, 3);
  const DevicePage source(raw);
  const TestPage encoded = EncodedPage(raw, Precision::kQ8);
  const DevicePage page(encoded);
  const PageTile from = source.view().tile(0, 0);
  const auto encode = [&] {
    DevicePage target(encoded);
    const PageTile to = target.view().tile(0, 0);
    const auto words = [](const uint16_t* p) { return const_cast<uint16_t*>(p); };
    const auto codes = [](const uint32_t* p) { return const_cast<uint32_t*>(p); };
    const DeviceVector<EncodeTileParams> tiles(std::vector<EncodeTileParams>{
        {from.raw_k, from.raw_v, 80, 32, words(to.k_hi_params), words(to.v_hi_params),
         words(to.k_lo_params), words(to.v_lo_params), codes(to.k_hi), codes(to.v_hi),
         codes(to.k_lo), codes(to.v_lo)}});
    DeviceVector<uint32_t> refused(1);
    PAGODA_EXPECT_OK(EncodeTilesCuda({tiles.data(), refused.data(), 1, 80, 32}, nullptr));
    std::vector<uint32_t> written(32 * 80 / kOctet);
    CopyToHost(written.data(), to.k_hi, written.size() * sizeof(uint32_t));
    return written;
  };
  UnderSchedules(encode);
  const auto dequantize = [&] {
    const DeviceVector<PageTile> tiles(std::vector<PageTile>{page.view().tile(0, 0)});
    const DeviceVector<int64_t> offset(1);
    DeviceVector<float> k(32 * 80);
    DeviceVector<float> v(32 * 80);
    PAGODA_EXPECT_OK(DequantizeTilesCuda(
        {tiles.data(), offset.data(), k.data(), v.data(), 0, 80, 1, 1, 80, 32, RowType::kFloat},
        nullptr));
    return v.ToHost();
  };
  UnderSchedules(dequantize);
}

TEST(ScheduleCudaTest, DigestAndScore) {
  const PageShape shape{1, 1, 80, 32};
  const TestPage encoded = EncodedPage(RandomRawPage(shape, 0, 4), Precision::kQ4);
  const DevicePage page(encoded);
  const DeviceVector<PageTile> tiles(std::vector<PageTile>{page.view().tile(0, 0)});
  const DeviceVector<float> q(std::vector<float>(2 * 80, 0.5f));
  const auto score = [&] {
    DeviceVector<uint16_t> words(TileBytesOf(PlaneId::kQuestDigest, shape).first / 2);
    const DeviceVector<uint16_t*> targets(std::vector<uint16_t*>{words.data()});
    PAGODA_EXPECT_OK(BuildDigestsCuda(
        {PlaneId::kQuestDigest, tiles.data(), targets.data(), 1, 1, 80, 32}, nullptr));
    DeviceVector<float> turned(2 * 80);
    PAGODA_EXPECT_OK(
        TurnQueriesCuda({q.data(), turned.data(), 2, 80, 9, Rope{1e4, 64, 1}}, nullptr));
    const DeviceVector<DigestTile> digests(std::vector<DigestTile>{{words.data(), 32}});
    DeviceVector<float> scores(2 * 2);
    PAGODA_EXPECT_OK(ScorePagesCuda(
        {PlaneId::kQuestDigest, turned.data(), digests.data(), scores.data(), 1, 1, 2, 80, 32},
        nullptr));
    return scores.ToHost();
  };
  UnderSchedules(score);
}

TEST(ScheduleCudaTest, Gather) {
  const DeviceVector<uint8_t> source(std::vector<uint8_t>(40000, 9));
  const auto gather = [&] {
    DeviceVector<uint8_t> target(40000);
    const DeviceVector<CopyPiece> pieces(std::vector<CopyPiece>{
        {source.data(), target.data(), 20000}, {source.data(), target.data() + 20000, 16}});
    PAGODA_EXPECT_OK(GatherCuda({pieces.data(), 2, 20000}, nullptr));
    return target.ToHost();
  };
  UnderSchedules(gather);
}

}  // namespace
}  // namespace pagoda::kernels::cuda
