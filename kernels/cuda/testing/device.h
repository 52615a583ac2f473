// Memory and time of the device, for tests and benches: the GPU's, or the emulated device's, which
// is the host's. Which one is decided by what is linked: device_host.cc or device_gpu.cu.
//
// Errors  a CUDA error ends the process with its text: nothing here is for daemons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/stream.h"

namespace pagoda::kernels::cuda {

bool DeviceIsEmulated();
// Its name, with GPU count and memory; for the head of a report.
const char* DeviceName();

void* DeviceAllocate(size_t bytes);
void DeviceFree(void* memory);
void CopyToDevice(void* device, const void* host, size_t bytes);
// Waits for all work first.
void CopyToHost(void* host, const void* device, size_t bytes);
// Milliseconds on the device from start to the end of what `enqueue` puts on the default stream.
double DeviceMilliseconds(void (*enqueue)(void*), void* argument);

// Memory of the device, filled with zeros or from a vector.
template <typename T>
class DeviceVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit DeviceVector(size_t count) : DeviceVector(std::vector<T>(count)) {}
  explicit DeviceVector(const std::vector<T>& host)
      : data_(static_cast<T*>(DeviceAllocate(host.size() * sizeof(T)))), count_(host.size()) {
    CopyToDevice(data_, host.data(), count_ * sizeof(T));
  }
  DeviceVector(DeviceVector&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceVector& operator=(DeviceVector&&) = delete;
  ~DeviceVector() { DeviceFree(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  std::vector<T> ToHost() const {
    std::vector<T> host(count_);
    CopyToHost(host.data(), data_, count_ * sizeof(T));
    return host;
  }

 private:
  T* data_;
  size_t count_;
};

}  // namespace pagoda::kernels::cuda
