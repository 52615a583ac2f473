// Tells ThreadSanitizer about gRPC's operations. Linked into every executable of a tsan build.
//
// A distribution's gRPC is not instrumented: ThreadSanitizer does not see how an operation's
// completion reaches another thread. This file stands between our code and libgrpc at the three
// functions through which operations go in and out, and states: what was done before an operation
// was started comes before what its completion does.
//
// A callback operation's tag is a functor whose function libgrpc calls: it is replaced by one of
// ours that calls the original. Types are those of grpc/impl/grpc_types.h, repeated here so that
// tests without gRPC need not link it.
#if defined(__SANITIZE_THREAD__)

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" {
extern const char __executable_start;
extern const char etext;

struct PagodaGrpcEvent {
  int type;
  int success;
  void* tag;
};
struct PagodaGrpcTimespec {
  int64_t seconds;
  int32_t nanoseconds;
  int clock_type;
};
}

namespace {

struct Functor {
  void (*run)(Functor*, int);
};
using Run = void (*)(Functor*, int);

constexpr size_t kOriginalsMax = 8;  // one for each functor class of gRPC's headers: there are two
std::array<std::atomic<Run>, kOriginalsMax> originals;

template <size_t kIndex>
void RunAfterAcquire(Functor* functor, int ok) {
  __tsan_acquire(functor);
  originals[kIndex].load(std::memory_order_acquire)(functor, ok);
}

constexpr std::array<Run, kOriginalsMax> kWrappers = {
    RunAfterAcquire<0>, RunAfterAcquire<1>, RunAfterAcquire<2>, RunAfterAcquire<3>,
    RunAfterAcquire<4>, RunAfterAcquire<5>, RunAfterAcquire<6>, RunAfterAcquire<7>};

// The wrapper for an original, or the argument itself if it is a wrapper already.
Run WrapperOf(Run run) {
  for (const Run wrapper : kWrappers) {
    if (run == wrapper) return run;
  }
  for (size_t i = 0; i < kOriginalsMax; ++i) {
    Run expected = nullptr;
    if (originals[i].compare_exchange_strong(expected, run, std::memory_order_acq_rel) ||
        expected == run) {
      return kWrappers[i];
    }
  }
  std::abort();
}

// gRPC also uses small numbers as tags.
bool IsPointer(const void* tag) { return reinterpret_cast<uintptr_t>(tag) >= 4096; }

// Tags of the synchronous interface are objects that begin with a vtable, which is not code.
bool IsFunctor(void* tag) {
  const char* first_word = *static_cast<const char**>(tag);
  return first_word >= &__executable_start && first_word < &etext;
}

template <typename Function>
Function Real(const char* name) {
  void* symbol = dlsym(RTLD_NEXT, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "tsan_grpc: no %s in the gRPC of this machine\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(symbol);
}

}  // namespace

extern "C" {

int grpc_call_start_batch(void* call, const void* ops, size_t count, void* tag, void* reserved) {
  static const auto real =
      Real<int (*)(void*, const void*, size_t, void*, void*)>("grpc_call_start_batch");
  if (IsPointer(tag)) {
    if (IsFunctor(tag)) {
      auto* functor = static_cast<Functor*>(tag);
      functor->run = WrapperOf(functor->run);
    }
    __tsan_release(tag);
  }
  return real(call, ops, count, tag, reserved);
}

PagodaGrpcEvent grpc_completion_queue_pluck(void* queue, void* tag, PagodaGrpcTimespec deadline,
                                            void* reserved) {
  static const auto real = Real<PagodaGrpcEvent (*)(void*, void*, PagodaGrpcTimespec, void*)>(
      "grpc_completion_queue_pluck");
  const PagodaGrpcEvent event = real(queue, tag, deadline, reserved);
  if (IsPointer(tag)) __tsan_acquire(tag);
  return event;
}

PagodaGrpcEvent grpc_completion_queue_next(void* queue, PagodaGrpcTimespec deadline,
                                           void* reserved) {
  static const auto real =
      Real<PagodaGrpcEvent (*)(void*, PagodaGrpcTimespec, void*)>("grpc_completion_queue_next");
  const PagodaGrpcEvent event = real(queue, deadline, reserved);
  if (IsPointer(event.tag)) __tsan_acquire(event.tag);
  return event;
}

}  // extern "C"

#endif  // defined(__SANITIZE_THREAD__)
