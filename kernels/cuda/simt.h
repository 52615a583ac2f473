// CUDA C++ for two compilers: under nvcc this header adds two macros, under a host compiler it is
// the device. One OS thread runs one block at a time, every CUDA thread of it is a fiber, so that
// g++, its sanitizers and a debugger see kernels as ordinary code. simt.cc has the scheduler.
//
// Offered    threadIdx, blockIdx, blockDim, gridDim (.x of blocks; grids in three dimensions);
//            one struct of shared memory (PAGODA_SHARED); __syncthreads, __syncwarp, __shfl_sync,
//            __shfl_xor_sync, atomicOr; __byte_perm, __f*_rn; the vector types uint2, uint4,
//            float2, float4
// Not here   __shared__ itself, partial warp masks, other atomics, streams, cooperative groups,
//            TMA, wgmma. Inline PTX stands in a wrapper with a twin made of WarpExchange():
//            mma.cuh.
// Threads    Launch() returns when all blocks ran, on worker_count OS threads; blocks on different
//            threads run concurrently, threads of a block in the order that `schedule` says.
// Memory     __syncthreads and __syncwarp order memory; shuffles do not, as CUDA promises no more.
//            ThreadSanitizer sees exactly that: two accesses of a block's threads with no barrier
//            between them are a data race in its report, whatever values they gave. Shared memory
//            begins as 0xCD in every block.
// Errors     misuse aborts with a message that names the thread: barriers that not all threads
//            reach, threads that meet at different calls, a shuffle without its whole warp
// Limits     x86-64; blocks of whole warps, at most 1024 threads, 64 KiB of stack each; fibers are
//            not preempted, so a kernel that spins on memory hangs. Sanitizers with g++ only.
//            exp2f and log2f differ from a GPU's by ulps. Not shown: coalescing, bank conflicts.
// Cost       about 20 ns per thread and barrier or shuffle
#pragma once

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// The block's shared memory, one struct. Static, so that ptxas reports it and refuses too much.
#define PAGODA_SHARED(Type, name) __shared__ Type name

// PAGODA_LAUNCH((kernel<...>), grid, threads of a block, bytes of shared memory, stream, args ...)
#define PAGODA_LAUNCH(kernel, grid, threads, shared_bytes, stream, ...) \
  kernel<<<grid, threads, 0, stream>>>(__VA_ARGS__)

#else  // the host is the device

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define PAGODA_SHARED(Type, name) \
  Type& name = *static_cast<Type*>(::pagoda::simt::SharedMemory(sizeof(Type)))
#define PAGODA_LAUNCH(kernel, grid, threads, shared_bytes, stream, ...) \
  static_cast<void>(stream),                                            \
      ::pagoda::simt::Launch(grid, threads, shared_bytes, [&] { (kernel)(__VA_ARGS__); })

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_count = 1, unsigned y_count = 1, unsigned z_count = 1)
      : x(x_count), y(y_count), z(z_count) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace pagoda::simt {

struct Options {
  // Order in which the threads of a block run between barriers. Values that depend on it are races.
  unsigned schedule = 0;      // 0 ascending, 1 descending, else shuffled by this seed
  unsigned worker_count = 0;  // OS threads; 0: as many as cores
};
// Of all later launches. Not to be changed while one runs.
Options& LaunchOptions();

void Launch(dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()>& body);

// Shared memory of the running block; aborts when the launch gave less than `bytes`.
void* SharedMemory(size_t bytes);

// What a thread brings to a warp operation.
struct Payload {
  uint64_t words[4];
};

// Meets the other 31 threads of the warp; returns what each brought, valid until the thread's next
// warp operation. `site` identifies the call: all must come from the same one.
const Payload* WarpExchange(unsigned mask, const Payload& mine, unsigned site, bool orders_memory);
void BlockBarrier(unsigned site);

[[noreturn]] void Die(const char* message, unsigned detail);

enum Operation : unsigned { kSyncThreads, kSyncWarp, kShuffle, kMma, kOperationCount };

constexpr unsigned SiteOf(Operation operation, unsigned line) {
  return line * kOperationCount + operation;
}

template <typename T>
T Shuffle(unsigned mask, T value, unsigned source, unsigned line) {
  static_assert(sizeof(T) <= sizeof(Payload) && std::is_trivially_copyable_v<T>);
  Payload mine{};
  std::memcpy(&mine, &value, sizeof(T));
  const Payload* all = WarpExchange(mask, mine, SiteOf(kShuffle, line), false);
  if (source >= static_cast<unsigned>(warpSize)) Die("a shuffle reads a lane that is not", source);
  std::memcpy(&value, &all[source], sizeof(T));
  return value;
}

}  // namespace pagoda::simt

inline void __syncthreads(unsigned line = __builtin_LINE()) {
  pagoda::simt::BlockBarrier(pagoda::simt::SiteOf(pagoda::simt::kSyncThreads, line));
}
inline void __syncwarp(unsigned mask = ~0u, unsigned line = __builtin_LINE()) {
  pagoda::simt::WarpExchange(mask, {}, pagoda::simt::SiteOf(pagoda::simt::kSyncWarp, line), true);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, unsigned source, unsigned line = __builtin_LINE()) {
  return pagoda::simt::Shuffle(mask, value, source, line);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned other, unsigned line = __builtin_LINE()) {
  return pagoda::simt::Shuffle(mask, value, threadIdx.x % warpSize ^ other, line);
}
inline unsigned atomicOr(unsigned* address, unsigned bits) {
  return std::atomic_ref<unsigned>(*address).fetch_or(bits, std::memory_order_relaxed);
}

// Bytes of (b, a), 4 for the low half of each selector digit.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const auto byte = static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 255);
    result |= byte << 8 * i;
  }
  return result;
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
// Rounded once, never contracted: this side is compiled with -ffp-contract=off.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }

#endif
