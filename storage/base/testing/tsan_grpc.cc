// Tells ThreadSanitizer about gRPC's operations. Linked into every executable of a tsan build.
//
// A distribution's gRPC is not instrumented: ThreadSanitizer does not see how an operation's
// completion reaches another thread. This file stands between our code and libgrpc and states three
// things:
//   - What was done before an operation was started comes before what its completion does. A
//   callback
//     operation's tag is a functor whose function libgrpc calls: it is replaced by one of ours that
//     calls the original.
//   - A server call's OnDone comes after whatever gave up a reference to that call, its OnCancel
//   after
//     whatever met a condition of it. Headers count some of these in instrumented code, libgrpc++
//     counts the others.
//   - What gRPC hands to its executor comes before what the executor's thread does with it.
// Types are those of gRPC's headers, repeated here so that tests without gRPC need not link it. The
// C++ functions are known by the symbols of gRPC 1.51 with abseil 20220623: with others they are
// not stood between, and ThreadSanitizer reports what it cannot see.
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

constexpr int kOperationComplete = 2;  // GRPC_OP_COMPLETE; other events have no tag

// What gRPC owns is read and written here as gRPC itself does it: unseen.
#define PAGODA_UNSEEN __attribute__((no_sanitize("thread")))

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

// The beginning of grpc::internal::ServerCallbackCall.
struct ServerCall {
  void* vtable;
  int on_cancel_conditions_remaining;
  int callbacks_outstanding;
};

// grpc_closure.
struct Closure {
  uintptr_t next;
  void (*run)(void* argument, void* error);
  void* argument;
};

// What stands in a closure while the executor has it.
struct HandedOver {
  Closure* closure;
  void (*run)(void* argument, void* error);
  void* argument;
};

PAGODA_UNSEEN void RunHandedOver(void* argument, void* error) {
  const HandedOver original = *static_cast<HandedOver*>(argument);
  __tsan_acquire(argument);
  delete static_cast<HandedOver*>(argument);
  original.closure->run = original.run;
  original.closure->argument = original.argument;
  original.run(original.argument, error);
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
  if (event.type == kOperationComplete && IsPointer(event.tag)) __tsan_acquire(event.tag);
  return event;
}

// grpc::internal::ServerCallbackCall::ScheduleOnDone(bool)
#define PAGODA_SCHEDULE_ON_DONE "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb"
void PagodaScheduleOnDone(ServerCall* call, bool inline_ondone) asm(PAGODA_SCHEDULE_ON_DONE);
void PagodaScheduleOnDone(ServerCall* call, bool inline_ondone) {
  static const auto real = Real<void (*)(ServerCall*, bool)>(PAGODA_SCHEDULE_ON_DONE);
  __tsan_acquire(&call->callbacks_outstanding);
  real(call, inline_ondone);
}

// grpc::internal::ServerCallbackCall::CallOnCancel(ServerReactor*)
#define PAGODA_CALL_ON_CANCEL \
  "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE"
void PagodaCallOnCancel(ServerCall* call, void* reactor) asm(PAGODA_CALL_ON_CANCEL);
void PagodaCallOnCancel(ServerCall* call, void* reactor) {
  static const auto real = Real<void (*)(ServerCall*, void*)>(PAGODA_CALL_ON_CANCEL);
  __tsan_acquire(&call->on_cancel_conditions_remaining);
  real(call, reactor);
}

// grpc_core::Executor::Run(grpc_closure*, absl::Status, ExecutorType, ExecutorJobType): the status
// is passed by address.
#define PAGODA_EXECUTOR_RUN                                          \
  "_ZN9grpc_core8Executor3RunEP12grpc_closureN4absl7debian36StatusE" \
  "NS_12ExecutorTypeENS_15ExecutorJobTypeE"
void PagodaExecutorRun(Closure* closure, void* error, int executor,
                       int job) asm(PAGODA_EXECUTOR_RUN);
PAGODA_UNSEEN void PagodaExecutorRun(Closure* closure, void* error, int executor, int job) {
  static const auto real = Real<void (*)(Closure*, void*, int, int)>(PAGODA_EXECUTOR_RUN);
  auto* handed_over = new HandedOver{closure, closure->run, closure->argument};
  closure->run = RunHandedOver;
  closure->argument = handed_over;
  __tsan_release(handed_over);
  real(closure, error, executor, job);
}

}  // extern "C"

#endif  // defined(__SANITIZE_THREAD__)
