// Goal: gathering copies every byte of every piece and no other. Method: pieces of several sizes
// out of a shuffled pool into one buffer with gaps, and back.
#include "kernels/cuda/gather_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/cuda/testing/device.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels::cuda {
namespace {

TEST(GatherCudaTest, PiecesArriveWholeAndNothingElseChanges) {
  constexpr int64_t kSlot = 80 << 10;
  const std::vector<int64_t> sizes = {16, 4096, 80 << 10, 32, 65552, 0};
  std::vector<uint8_t> pool(sizes.size() * kSlot);
  std::mt19937 random(3);
  for (uint8_t& byte : pool) byte = static_cast<uint8_t>(random());
  std::vector<int64_t> slots = {4, 1, 5, 0, 3, 2};
  const DeviceVector<uint8_t> source(pool);
  DeviceVector<uint8_t> target(pool.size());
  std::vector<CopyPiece> pieces;
  std::vector<uint8_t> expected(pool.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t from = slots[i] * kSlot;
    const int64_t to = static_cast<int64_t>(i) * kSlot;
    pieces.push_back({source.data() + from, target.data() + to, sizes[i]});
    std::copy_n(pool.begin() + from, sizes[i], expected.begin() + to);
  }
  const DeviceVector<CopyPiece> device_pieces(pieces);
  PAGODA_ASSERT_OK(
      GatherCuda({device_pieces.data(), static_cast<int32_t>(pieces.size()), kSlot}, nullptr));
  EXPECT_EQ(target.ToHost(), expected);
}

TEST(GatherCudaTest, WrongCallsAreRefused) {
  DeviceVector<CopyPiece> pieces(1);
  for (const GatherParams& p :
       {GatherParams{nullptr, 1, 16}, GatherParams{pieces.data(), 0, 16},
        GatherParams{pieces.data(), 65536, 16}, GatherParams{pieces.data(), 1, 0}}) {
    EXPECT_THAT(GatherCuda(p, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace pagoda::kernels::cuda
