// The device of tests that run on both backends. Which one is decided by what is linked:
// test_device_host.cc or test_device_cuda.cc.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "storage/device/runtime.h"

namespace pagoda {

// How many devices there are; 0 means that the test skips.
int TestDeviceCount();
absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenTestDevice(int index = 0);

}  // namespace pagoda
