// The scheduler of simt.h. Blocks are dealt to OS threads; a block's threads are fibers that run
// until they wait, then hand over to the next that can run. ThreadSanitizer must not see this file
// (kernels/cuda/CMakeLists.txt compiles it without): to it, fibers are threads whose only order is
// what Release() and Acquire() state.
#include "kernels/cuda/simt.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#if defined(PAGODA_SIMT_TSAN)
#include <sanitizer/tsan_interface.h>
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#error "simt.cc switches stacks by x86-64 instructions"
#endif

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace pagoda::simt {
namespace {

// Saves the callee-saved registers on this stack and the stack pointer in *save; goes on at `to`.
extern "C" void pagoda_simt_switch(void** save, void* to);
asm(R"(.text
.type pagoda_simt_switch,@function
pagoda_simt_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size pagoda_simt_switch,.-pagoda_simt_switch)");

constexpr unsigned kThreadsMax = 1024;
constexpr unsigned kWarpsMax = kThreadsMax / warpSize;
constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kSharedAlign = 128;

// One stack, as the sanitizers know it.
struct Context {
  void* stack_pointer = nullptr;
  const void* stack_low = nullptr;
  size_t stack_bytes = 0;
  void* sanitizer = nullptr;  // TSan: its fiber. ASan: the frames it keeps aside
};

struct Barrier {
  unsigned arrived = 0;
  unsigned generation = 0;
  unsigned site = 0;  // of the first to arrive
};

struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack;
  unsigned thread = 0;
  bool done = false;
  const Barrier* waits_for = nullptr;
  unsigned generation = 0;  // of waits_for, when it arrived
};

struct Warp {
  Barrier barrier;
  unsigned live = 0;
  Payload payloads[2][warpSize];  // by generation: the last ones are read while the next arrive
};

// A block that runs, and the memory that the next one on this OS thread takes over.
struct Block {
  Fiber fibers[kThreadsMax];
  Warp warps[kWarpsMax];
  unsigned order[kThreadsMax];
  unsigned count = 0;
  unsigned live = 0;
  unsigned next = 0;  // in order
  Barrier barrier;
  Fiber* current = nullptr;
  Context host;
  char* shared = nullptr;
  size_t shared_bytes = 0;
  const std::function<void()>* body = nullptr;
};

thread_local Block* block = nullptr;

#if defined(PAGODA_SIMT_TSAN)
void BeforeSwitch(Context&, Context& to, bool) {
  __tsan_switch_to_fiber(to.sanitizer, __tsan_switch_to_fiber_no_sync);
}
void AfterSwitch(Context&) {}
void Release(void* address) { __tsan_release(address); }
void Acquire(void* address) { __tsan_acquire(address); }
void PrepareContext(Context& context) {
  if (context.sanitizer == nullptr) context.sanitizer = __tsan_create_fiber(0);
}
void DestroyContext(Context& context) {
  if (context.sanitizer != nullptr) __tsan_destroy_fiber(context.sanitizer);
}
void PrepareHost(Context& context) { context.sanitizer = __tsan_get_current_fiber(); }
#elif defined(__SANITIZE_ADDRESS__)
void BeforeSwitch(Context& from, Context& to, bool for_ever) {
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &from.sanitizer, to.stack_low,
                                 to.stack_bytes);
}
void AfterSwitch(Context& self) {
  const void* low = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(self.sanitizer, &low, &bytes);
  if (block->host.stack_low == nullptr) {  // the first switch comes from the host's stack
    block->host.stack_low = low;
    block->host.stack_bytes = bytes;
  }
}
void Release(void*) {}
void Acquire(void*) {}
void PrepareContext(Context& context) {
  context.sanitizer = nullptr;
  // The last run of this stack ended without unwinding its frames.
  __asan_unpoison_memory_region(context.stack_low, context.stack_bytes);
}
void DestroyContext(Context&) {}
void PrepareHost(Context& context) { context = Context{}; }
#else
void BeforeSwitch(Context&, Context&, bool) {}
void AfterSwitch(Context&) {}
void Release(void*) {}
void Acquire(void*) {}
void PrepareContext(Context&) {}
void DestroyContext(Context&) {}
void PrepareHost(Context&) {}
#endif

void SwitchTo(Context& from, Context& to, bool for_ever = false) {
  BeforeSwitch(from, to, for_ever);
  pagoda_simt_switch(&from.stack_pointer, to.stack_pointer);
  AfterSwitch(from);
}

void SwitchTo(Fiber& to) {
  Fiber& from = *block->current;
  if (&from == &to) return;
  block->current = &to;
  threadIdx = {to.thread, 0, 0};
  SwitchTo(from.context, to.context, from.done);
}

bool CanRun(const Fiber& fiber) {
  return !fiber.done &&
         (fiber.waits_for == nullptr || fiber.waits_for->generation != fiber.generation);
}

// The next that can run, in scheduling order; null when all wait.
Fiber* PickFiber() {
  for (unsigned i = 0; i < block->count; ++i) {
    Fiber& fiber = block->fibers[block->order[block->next]];
    block->next = block->next + 1 == block->count ? 0 : block->next + 1;
    if (CanRun(fiber)) return &fiber;
  }
  return nullptr;
}

void Open(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.generation;
}

void Arrive(Barrier& barrier, unsigned expected, unsigned site, bool orders_memory) {
  Fiber& self = *block->current;
  if (orders_memory) Release(&barrier);
  if (barrier.arrived == 0) barrier.site = site;
  if (barrier.site != site) Die("threads meet at different synchronisation calls", site);
  if (++barrier.arrived == expected) {
    Open(barrier);
  } else {
    self.waits_for = &barrier;
    self.generation = barrier.generation;
    Fiber* next = PickFiber();
    if (next == nullptr) Die("deadlock: a barrier that not all threads reach", barrier.arrived);
    SwitchTo(*next);
    self.waits_for = nullptr;
  }
  if (orders_memory) Acquire(&barrier);
}

// A thread that returned no longer counts at __syncthreads, as on a GPU.
void FinishFiber() {
  Fiber& self = *block->current;
  Release(block);
  self.done = true;
  --block->live;
  --block->warps[self.thread / warpSize].live;
  if (block->live > 0 && block->barrier.arrived == block->live) Open(block->barrier);
  Fiber* next = block->live > 0 ? PickFiber() : nullptr;
  if (block->live > 0 && next == nullptr) Die("deadlock: threads wait for one that returned", 0);
  if (next != nullptr) {
    SwitchTo(*next);
  } else {
    SwitchTo(self.context, block->host, /*for_ever=*/true);
  }
  Die("a finished thread was resumed", 0);
}

void FiberMain() {
  AfterSwitch(block->current->context);
  Acquire(block);
  (*block->body)();
  FinishFiber();
}

void PrepareFiber(Fiber& fiber, unsigned thread) {
  if (fiber.stack == nullptr) fiber.stack.reset(new char[kStackBytes]);
  fiber.thread = thread;
  fiber.done = false;
  fiber.waits_for = nullptr;
  fiber.context.stack_low = fiber.stack.get();
  fiber.context.stack_bytes = kStackBytes;
  PrepareContext(fiber.context);
  const auto top = (reinterpret_cast<uintptr_t>(fiber.stack.get()) + kStackBytes) & ~uintptr_t{63};
  void** stack = reinterpret_cast<void**>(top);
  *--stack = nullptr;  // as if FiberMain had been called: 8 below a multiple of 16
  *--stack = reinterpret_cast<void*>(&FiberMain);
  for (int i = 0; i < 6; ++i) *--stack = nullptr;
  fiber.context.stack_pointer = stack;
}

void OrderFibers(const uint3& index) {
  const unsigned schedule = LaunchOptions().schedule;
  std::iota(block->order, block->order + block->count, 0u);
  if (schedule == 1) std::reverse(block->order, block->order + block->count);
  if (schedule > 1) {
    std::mt19937 random(schedule + 131 * index.x + 17 * index.y + index.z);
    std::shuffle(block->order, block->order + block->count, random);
  }
}

void RunBlock(const uint3& index) {
  blockIdx = index;
  block->live = block->count;
  block->next = 0;
  block->barrier = Barrier{};
  std::fill_n(block->shared, block->shared_bytes, '\xCD');
  OrderFibers(index);
  for (unsigned i = 0; i < block->count; ++i) PrepareFiber(block->fibers[i], i);
  for (unsigned i = 0; i < block->count / warpSize; ++i) {
    block->warps[i].barrier = Barrier{};
    block->warps[i].live = warpSize;
  }
  block->current = PickFiber();
  threadIdx = {block->current->thread, 0, 0};
  PrepareHost(block->host);
  Release(block);
  SwitchTo(block->host, block->current->context);
  Acquire(block);
}

void RunBlocks(dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()>& body,
               std::atomic<unsigned>& next_block) {
  const auto own = std::make_unique<Block>();
  block = own.get();
  block->count = threads;
  block->body = &body;
  block->shared_bytes = shared_bytes;
  block->shared = static_cast<char*>(::operator new(shared_bytes, std::align_val_t(kSharedAlign)));
  gridDim = grid;
  blockDim = threads;
  const unsigned block_count = grid.x * grid.y * grid.z;
  // Relaxed: only the number matters.
  for (unsigned i; (i = next_block.fetch_add(1, std::memory_order_relaxed)) < block_count;) {
    RunBlock({i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)});
  }
  for (unsigned i = 0; i < threads; ++i) DestroyContext(block->fibers[i].context);
  ::operator delete(block->shared, std::align_val_t(kSharedAlign));
  block = nullptr;
}

}  // namespace

Options& LaunchOptions() {
  static Options options;
  return options;
}

void Launch(dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()>& body) {
  if (threads == 0 || threads > kThreadsMax || threads % warpSize != 0) {
    Die("a block has whole warps, at most 1024 threads", threads);
  }
  const unsigned block_count = grid.x * grid.y * grid.z;
  unsigned workers = LaunchOptions().worker_count;
  if (workers == 0) workers = std::max(1u, std::thread::hardware_concurrency());
  workers = std::min(workers, block_count);
  std::atomic<unsigned> next_block{0};
  const auto work = [&] { RunBlocks(grid, threads, shared_bytes, body, next_block); };
  if (workers <= 1) return work();
  std::vector<std::thread> pool;
  for (unsigned i = 0; i < workers; ++i) pool.emplace_back(work);
  for (std::thread& worker : pool) worker.join();
}

void* SharedMemory(size_t bytes) {
  if (bytes > block->shared_bytes) Die("less shared memory launched than used", bytes);
  return block->shared;
}

const Payload* WarpExchange(unsigned mask, const Payload& mine, unsigned site, bool orders_memory) {
  const unsigned thread = block->current->thread;
  Warp& warp = block->warps[thread / warpSize];
  if (mask != ~0u) Die("a warp operation on a part of the warp", mask);
  if (warp.live != static_cast<unsigned>(warpSize)) {
    Die("a warp operation after a lane of the warp returned", warp.live);
  }
  Payload* payloads = warp.payloads[warp.barrier.generation % 2];
  for (int i = 0; i < 4; ++i) payloads[thread % warpSize].words[i] = mine.words[i];
  Arrive(warp.barrier, warpSize, site, orders_memory);
  return payloads;
}

void BlockBarrier(unsigned site) { Arrive(block->barrier, block->live, site, true); }

void Die(const char* message, unsigned detail) {
  std::fprintf(stderr, "simt: %s (block %u,%u,%u thread %u, detail %u)\n", message, blockIdx.x,
               blockIdx.y, blockIdx.z, threadIdx.x, detail);
  std::abort();
}

}  // namespace pagoda::simt
