// Goal: a process without driver or GPU starts and says what is missing. Method: the library as a
// daemon links it. What a GPU does is for the tests that end in _gpu_test.
#include "storage/device/cuda_runtime.h"

#include <gtest/gtest.h>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

TEST(CudaRuntimeTest, NoGpuIsAStatus) {
  const auto devices = ListCudaDevices();
  if (devices.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(devices, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(OpenCudaDevice({}), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace pagoda
