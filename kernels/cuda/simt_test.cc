// Goal: the emulated device keeps CUDA's promises, and what a kernel does wrong ends in a message:
// it never hangs and never passes. Method: small kernels for each operation; kernels with a planted
// fault run in a child process whose end is checked. The data race needs ThreadSanitizer to be seen
// and the access out of bounds AddressSanitizer: other builds skip those two, and say so.
#include "kernels/cuda/simt.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

namespace pagoda::simt {
namespace {

constexpr unsigned kAll = ~0u;

struct Scope {  // options of one test
  Scope(unsigned schedule, unsigned workers) { LaunchOptions() = {schedule, workers}; }
  ~Scope() { LaunchOptions() = {}; }
};

struct Sums {
  unsigned of_warp[4];
};

__global__ void SumKernel(const unsigned* in, unsigned* out) {
  PAGODA_SHARED(Sums, shared);
  unsigned sum = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned other = 1; other < 32; other *= 2) sum += __shfl_xor_sync(kAll, sum, other);
  if (threadIdx.x % 32 == 0) shared.of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned i = 1; i < blockDim.x / 32; ++i) sum += shared.of_warp[i];
    out[blockIdx.x] = sum;
  }
}

TEST(SimtTest, BarriersAndShufflesMeetInAnyOrder) {
  for (const unsigned schedule : {0u, 1u, 2u, 99u}) {
    const Scope scope(schedule, 2);
    std::vector<unsigned> in(5 * 128);
    std::iota(in.begin(), in.end(), 0u);
    std::vector<unsigned> out(5);
    PAGODA_LAUNCH((SumKernel), dim3(5), 128, sizeof(Sums), nullptr, in.data(), out.data());
    for (unsigned block = 0; block < 5; ++block) {
      EXPECT_EQ(out[block], 128 * 128 * block + 127 * 64);
    }
  }
}

__global__ void GridKernel(unsigned* out, unsigned* flags) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[block * blockDim.x + threadIdx.x] = 1 + __shfl_sync(kAll, threadIdx.x, 31);
  atomicOr(flags, 1u << block);
}

TEST(SimtTest, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<unsigned> out(24 * 64);
  unsigned flags = 0;
  PAGODA_LAUNCH((GridKernel), dim3(4, 3, 2), 64, 0, nullptr, out.data(), &flags);
  EXPECT_EQ(flags, (1u << 24) - 1);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i % 64 < 32 ? 32u : 64u);
}

struct Word {
  unsigned value;
};
__global__ void UndefinedKernel(unsigned* out) {
  PAGODA_SHARED(Word, shared);
  out[blockIdx.x * 32 + threadIdx.x] = shared.value;
  __syncwarp();
  if (threadIdx.x == 0) shared.value = 0;  // the next block does not see it
}

TEST(SimtTest, SharedMemoryBeginsUndefinedInEveryBlock) {
  const Scope scope(0, 1);
  std::vector<unsigned> out(2 * 32);
  PAGODA_LAUNCH((UndefinedKernel), dim3(2), 32, sizeof(Word), nullptr, out.data());
  for (const unsigned value : out) EXPECT_EQ(value, 0xCDCDCDCDu);
}

TEST(SimtTest, BytePermuteTakesBytesOfBoth) {
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x7504), 0x77550044u);
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x0123), 0x00112233u);
}

enum class Misuse {
  kDivergentBarrier,
  kPartialMask,
  kTwoOperations,
  kLaneReturned,
  kNoSuchLane,
  kTooLittleShared
};

__global__ void MisuseKernel(Misuse misuse) {
  const unsigned lane = threadIdx.x % 32;
  switch (misuse) {
    case Misuse::kDivergentBarrier:  // half a warp waits at the block's barrier
      if (threadIdx.x < 16) __syncthreads();
      if (threadIdx.x >= 16) __syncwarp();
      break;
    case Misuse::kPartialMask:
      if (lane < 16) __shfl_xor_sync(0xffffu, lane, 1);
      break;
    case Misuse::kTwoOperations:
      if (lane % 2 == 0) {
        __shfl_xor_sync(kAll, lane, 1);
      } else {
        __syncwarp();
      }
      break;
    case Misuse::kLaneReturned:
      if (lane == 3) return;
      __syncwarp();
      break;
    case Misuse::kNoSuchLane:
      __shfl_xor_sync(kAll, lane, 32);
      break;
    case Misuse::kTooLittleShared:
      SharedMemory(1);
      break;
  }
}

void RunMisuse(Misuse misuse) {
  const Scope scope(0, 1);
  PAGODA_LAUNCH((MisuseKernel), dim3(1), 64, 0, nullptr, misuse);
  std::exit(0);
}

TEST(SimtDeathTest, MisuseEndsInAMessage) {
  EXPECT_DEATH(RunMisuse(Misuse::kDivergentBarrier), "simt: deadlock");
  EXPECT_DEATH(RunMisuse(Misuse::kPartialMask), "simt: a warp operation on a part of the warp");
  EXPECT_DEATH(RunMisuse(Misuse::kTwoOperations),
               "simt: threads meet at different synchronisation");
  EXPECT_DEATH(RunMisuse(Misuse::kLaneReturned), "simt: (deadlock|a warp operation after a lane)");
  EXPECT_DEATH(RunMisuse(Misuse::kNoSuchLane), "simt: a shuffle reads a lane that is not");
  EXPECT_DEATH(RunMisuse(Misuse::kTooLittleShared), "simt: less shared memory launched than used");
  EXPECT_DEATH(Launch(dim3(1), 33, 0, [] {}), "simt: a block has whole warps");
}

struct Row {
  unsigned value[64];
};

// The planted race: __syncwarp orders lanes of a warp, these are of two.
__global__ void RaceKernel(unsigned* out, bool with_barrier) {
  PAGODA_SHARED(Row, shared);
  shared.value[threadIdx.x] = threadIdx.x;
  if (with_barrier) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  out[threadIdx.x] = shared.value[63 - threadIdx.x];
}

[[maybe_unused]] void RunRace(bool with_barrier) {
  const Scope scope(0, 1);
  std::vector<unsigned> out(64);
  PAGODA_LAUNCH((RaceKernel), dim3(1), 64, sizeof(Row), nullptr, out.data(), with_barrier);
  std::exit(0);
}

TEST(SimtPlantedFaultDeathTest, ARaceIsReported) {
#if !defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a data race is seen by ThreadSanitizer alone: preset tsan";
#else
  EXPECT_EXIT(RunRace(true), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(RunRace(false), testing::ExitedWithCode(66), "data race");
#endif
}

__global__ void BoundsKernel(unsigned* out, unsigned beyond, bool in_shared) {
  PAGODA_SHARED(Row, shared);
  unsigned* first = in_shared ? shared.value : out;
  first[threadIdx.x + beyond] = threadIdx.x;
}

[[maybe_unused]] void RunBounds(unsigned beyond, bool in_shared) {
  const Scope scope(0, 1);
  const std::unique_ptr<unsigned[]> out(new unsigned[64]);
  PAGODA_LAUNCH((BoundsKernel), dim3(1), 64, sizeof(Row), nullptr, out.get(), beyond, in_shared);
  std::exit(0);
}

TEST(SimtPlantedFaultDeathTest, AnAccessOutOfBoundsIsReported) {
#if !defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "an access out of bounds is seen by AddressSanitizer alone: preset asan";
#else
  EXPECT_EXIT(RunBounds(0, true), testing::ExitedWithCode(0), "");
  EXPECT_DEATH(RunBounds(1, true), "heap-buffer-overflow");
  EXPECT_DEATH(RunBounds(1, false), "heap-buffer-overflow");
#endif
}

}  // namespace
}  // namespace pagoda::simt
