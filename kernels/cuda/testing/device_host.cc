// The emulated device: its memory is the host's, in blocks of exactly the size that was asked for,
// so that AddressSanitizer sees the first byte beyond.
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/testing/device.h"
#include "storage/base/check.h"

namespace pagoda::kernels::cuda {
namespace {
constexpr size_t kAlignBytes = 256;  // what cudaMalloc gives
}

bool DeviceIsEmulated() { return true; }
const char* DeviceName() { return "emulated on the host (simt.h)"; }

void* DeviceAllocate(size_t bytes) {
  void* memory = nullptr;
  PAGODA_CHECK(posix_memalign(&memory, kAlignBytes, bytes == 0 ? 1 : bytes) == 0);
  return memory;
}
void DeviceFree(void* memory) { std::free(memory); }
void CopyToDevice(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}
void CopyToHost(void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}
double DeviceMilliseconds(void (*enqueue)(void*), void* argument) {
  const auto start = std::chrono::steady_clock::now();
  enqueue(argument);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace pagoda::kernels::cuda
