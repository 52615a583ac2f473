// Goal: CUDA's errors are statuses with name, words and remedy. Method: one error of each code.
#include "storage/device/cuda_status.h"

#include <gtest/gtest.h>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

TEST(CudaStatusTest, CodesNamesAndRemedies) {
  PAGODA_EXPECT_OK(FromCuda("cudaMalloc", cudaSuccess));
  EXPECT_THAT(FromCuda("cudaMalloc", cudaErrorMemoryAllocation),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "cudaMalloc: cudaErrorMemoryAllocation (out of memory); lower the budget"));
  EXPECT_THAT(FromCuda("cudaGetDeviceCount", cudaErrorInsufficientDriver),
              StatusIs(absl::StatusCode::kUnavailable, "install a driver"));
  EXPECT_THAT(FromCuda("x", cudaErrorNotSupported), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(FromCuda("x", cudaErrorInvalidValue), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(FromCuda("x", cudaErrorECCUncorrectable),
              StatusIs(absl::StatusCode::kUnavailable, "restart the process"));
  EXPECT_THAT(FromCudaDriver("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY),
              StatusIs(absl::StatusCode::kResourceExhausted, "cuMemCreate"));
  EXPECT_THAT(FromCudaDriver("cuMemMap", CUDA_ERROR_ILLEGAL_ADDRESS),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(IsSticky(cudaErrorIllegalAddress));
  EXPECT_FALSE(IsSticky(cudaErrorMemoryAllocation));
  EXPECT_FALSE(IsSticky(cudaErrorNotReady));
}

}  // namespace
}  // namespace pagoda
