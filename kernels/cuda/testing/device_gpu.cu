// The GPU that CUDA shows first.
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/testing/device.h"

namespace pagoda::kernels::cuda {
namespace {

void Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::abort();
}

}  // namespace

bool DeviceIsEmulated() { return false; }

const char* DeviceName() {
  static cudaDeviceProp properties = [] {
    cudaDeviceProp read;
    Check(cudaGetDeviceProperties(&read, 0), "cudaGetDeviceProperties");
    return read;
  }();
  return properties.name;
}

void* DeviceAllocate(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "cudaMalloc");
  return memory;
}
void DeviceFree(void* memory) { Check(cudaFree(memory), "cudaFree"); }
void CopyToDevice(void* device, const void* host, size_t bytes) {
  Check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}
void CopyToHost(void* host, const void* device, size_t bytes) {
  Check(cudaStreamSynchronize(nullptr), "a kernel");
  Check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}

double DeviceMilliseconds(void (*enqueue)(void*), void* argument) {
  cudaEvent_t start;
  cudaEvent_t stop;
  Check(cudaEventCreate(&start), "cudaEventCreate");
  Check(cudaEventCreate(&stop), "cudaEventCreate");
  Check(cudaEventRecord(start, nullptr), "cudaEventRecord");
  enqueue(argument);
  Check(cudaEventRecord(stop, nullptr), "cudaEventRecord");
  Check(cudaEventSynchronize(stop), "a kernel");
  float milliseconds = 0;
  Check(cudaEventElapsedTime(&milliseconds, start, stop), "cudaEventElapsedTime");
  Check(cudaEventDestroy(start), "cudaEventDestroy");
  Check(cudaEventDestroy(stop), "cudaEventDestroy");
  return milliseconds;
}

}  // namespace pagoda::kernels::cuda
