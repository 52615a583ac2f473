// Goal: decode attention on the device is that of the double specification within the bound of
// attention_cuda.h, by lanes and by tensor cores, for every plane, head_dim, group and length
// around the edges of blocks and pages. Method: random pages, shuffled page tables, several splits
// merged on the device. The same source runs on the emulated device and on a GPU.
#include "kernels/cuda/attention_cuda.h"

#include <functional>
#include <limits>

#include "kernels/cuda/testing/decode_case.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr Precision kRaw = Precision::kRaw16;
constexpr Precision kQ8 = Precision::kQ8;
constexpr Precision kQ4 = Precision::kQ4;

const std::vector<int64_t> kLengths = {1, 15, 16, 17, 63, 64, 65, 1000};

// All planes, groups and lengths of a head_dim.
void ExpectAllWithinBound(int32_t head_dim, int32_t page_tokens) {
  const PageShape shape{1, 1, head_dim, page_tokens};
  const int32_t page_count = (1000 + page_tokens - 1) / page_tokens;
  uint32_t seed = static_cast<uint32_t>(head_dim);
  double used[2] = {};  // by lanes, by tensor cores
  for (const std::vector<Precision>& planes :
       std::vector<std::vector<Precision>>{{kRaw}, {kQ8}, {kQ4}, {kQ4, kQ8, kRaw, kQ4}}) {
    const DecodePages pages(shape, planes, page_count, seed++);
    DecodeCase decode(pages, kLengths, 8, seed++);
    for (const int32_t group_count : {1, 3, 4, 8}) {
      SCOPED_TRACE(testing::Message() << "planes " << PrecisionName(planes[0]) << " of "
                                      << planes.size() << ", group " << group_count);
      const int32_t split_count = group_count == 3 ? 1 : group_count;
      for (const DecodeUnit unit : {DecodeUnit::kLanes, DecodeUnit::kTensorCores}) {
        double& most = used[unit == DecodeUnit::kTensorCores];
        const States states = decode.RunOnDevice(group_count, split_count, unit);
        most = std::max(most, decode.ExpectWithinBound(states, group_count, unit));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  testing::Test::RecordProperty("bound_used_permille", static_cast<int>(used[0] * 1000));
  testing::Test::RecordProperty("bound_used_permille_mma", static_cast<int>(used[1] * 1000));
  // Worst cases are rare: a result that comes near one has a fault.
  EXPECT_LT(used[0], 0.01);
  EXPECT_LT(used[1], 0.01);
}

TEST(DecodeCudaTest, HeadDim64) { ExpectAllWithinBound(64, 64); }
TEST(DecodeCudaTest, HeadDim80) { ExpectAllWithinBound(80, 32); }
TEST(DecodeCudaTest, HeadDim96) { ExpectAllWithinBound(96, 64); }
TEST(DecodeCudaTest, HeadDim128) { ExpectAllWithinBound(128, 128); }
TEST(DecodeCudaTest, HeadDim256) { ExpectAllWithinBound(256, 256); }

TEST(DecodeCudaTest, HeadsOfAPageAndManyGroups) {
  const PageShape shape{2, 3, 64, 64};
  const DecodePages pages(shape, {kQ8, kQ4, kRaw}, 5, 7);
  DecodeCase decode(pages, {300, 64, 3}, 19, 8);
  for (const int32_t group_count : {1, 2, 9, 19}) {
    SCOPED_TRACE(group_count);
    decode.ExpectWithinBound(decode.RunOnDevice(group_count, 2), group_count);
  }
}

// Magnitudes that floats hold and f16 does not: operands are scaled by powers of two.
TEST(DecodeCudaTest, TensorCoresTakeAnyMagnitude) {
  const DecodePages pages(PageShape{1, 1, 64, 64}, {kQ4, kQ8}, 2, 12);
  for (const float magnitude : {1e-12f, 1e6f}) {
    SCOPED_TRACE(magnitude);
    DecodeCase decode(pages, {5, 128}, 3, 13, magnitude);
    const States states = decode.RunOnDevice(3, 2, DecodeUnit::kTensorCores);
    decode.ExpectWithinBound(states, 3, DecodeUnit::kTensorCores);
  }
}

TEST(DecodeCudaTest, MoreSplitsThanPagesLeaveEmptyStates) {
  const DecodePages pages(PageShape{1, 1, 64, 64}, {kQ4, kRaw}, 2, 9);
  DecodeCase decode(pages, {100}, 1, 10);
  decode.ExpectWithinBound(decode.RunOnDevice(1, 7), 1);
}

TEST(DecodeCudaTest, WrongCallsAreRefused) {
  DeviceVector<float> floats(1024);
  DeviceVector<PageTile> tiles(1);
  DeviceVector<int32_t> begin(std::vector<int32_t>{0, 0});
  DeviceVector<int64_t> position(1);
  DecodeParams good;
  good.q = floats.data();
  good.tiles = tiles.data();
  good.tile_begin = begin.data();
  good.position = position.data();
  good.part_o = floats.data() + 256;
  good.part_lse2 = floats.data() + 512;
  good.sequence_count = good.kv_head_count = good.group_count = good.split_count = 1;
  good.head_dim = good.page_tokens = 64;
  good.softmax_scale = 0.125f;
  PAGODA_EXPECT_OK(DecodeAttentionCuda(good, nullptr));
  const std::vector<float> written = floats.ToHost();
  EXPECT_EQ(written[256 + 63], 0.0f);  // no tiles: the empty state
  EXPECT_EQ(written[512], -std::numeric_limits<float>::infinity());
  const std::vector<std::function<void(DecodeParams&)>> breaks = {
      [](DecodeParams& p) { p.head_dim = 72; },
      [](DecodeParams& p) { p.head_dim = 20; },
      [](DecodeParams& p) { p.page_tokens = 48; },
      [](DecodeParams& p) { p.sequence_count = 0; },
      [](DecodeParams& p) { p.kv_head_count = 257; },
      [](DecodeParams& p) { p.group_count = 65; },
      [](DecodeParams& p) { p.split_count = 1025; },
      [](DecodeParams& p) { p.q = nullptr; },
      [](DecodeParams& p) { p.part_lse2 = nullptr; },
      [](DecodeParams& p) { p.softmax_scale = std::numeric_limits<float>::quiet_NaN(); },
  };
  for (size_t i = 0; i < breaks.size(); ++i) {
    DecodeParams p = good;
    breaks[i](p);
    EXPECT_THAT(DecodeAttentionCuda(p, nullptr), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
  }
}

TEST(DecodeCudaTest, TilesThatKernelsCannotReadAreRefused) {
  const DecodePages pages(PageShape{1, 1, 64, 64}, {kQ8}, 1, 11);
  std::vector<PageTile> tiles = pages.DeviceTiles(64);
  PAGODA_EXPECT_OK(ValidateDeviceTiles(tiles, 64));
  tiles[0].sink_k += 2;  // 4-byte aligned: enough for a processor
  EXPECT_THAT(ValidateDeviceTiles(tiles, 64), StatusIs(absl::StatusCode::kInvalidArgument));
  tiles[0].sink_k = nullptr;
  EXPECT_THAT(ValidateDeviceTiles(tiles, 64), StatusIs(absl::StatusCode::kInvalidArgument));
  tiles = pages.DeviceTiles(64);
  tiles[0].v_lo_params += 4;  // scales are read sixteen bytes at a time
  EXPECT_THAT(ValidateDeviceTiles(tiles, 64), StatusIs(absl::StatusCode::kInvalidArgument));
  tiles = pages.DeviceTiles(64);
  tiles[0].sink_count = kSinkTokens + 1;
  EXPECT_THAT(ValidateDeviceTiles(tiles, 64),
              StatusIs(absl::StatusCode::kInvalidArgument, "5 sink rows"));
}

}  // namespace
}  // namespace pagoda::kernels::cuda
