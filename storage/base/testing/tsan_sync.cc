// Tells ThreadSanitizer about absl::Mutex. Linked into every executable of a tsan build.
//
// A distribution's abseil is not instrumented: ThreadSanitizer sees neither its atomics nor its
// futexes and would report every field that a mutex guards, in our code and in gRPC's. This file
// defines the mutex's functions once more; the dynamic linker takes these, for all libraries too.
// Each calls the real one and states what it orders: whoever unlocked comes before whoever locks.
#if defined(__SANITIZE_THREAD__)

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);

// What libraries without instrumentation do inside themselves (memmove, epoll_wait, ...) is not
// ours to judge; what our code does is. TSAN_OPTIONS may add to this.
const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
}

namespace {

#define PAGODA_TEXT_INNER(x) #x
#define PAGODA_TEXT(x) PAGODA_TEXT_INNER(x)

// The library's function of this mangled name, which stands without namespaces.
template <typename Function>
Function Real(const char* mangled) {
  const std::string space = PAGODA_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name = "_ZN4absl" + std::to_string(space.size()) + space + mangled;
  void* symbol = dlsym(RTLD_NEXT, name.c_str());
  if (symbol == nullptr) {
    std::fprintf(stderr, "tsan_sync: no %s in the abseil of this machine\n", name.c_str());
    std::abort();
  }
  return reinterpret_cast<Function>(symbol);
}

// Notification's wait functions are const, and so is their mangled name.
template <typename Function>
Function RealConst(const char* mangled) {
  const std::string space = PAGODA_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name = "_ZNK4absl" + std::to_string(space.size()) + space + mangled;
  void* symbol = dlsym(RTLD_NEXT, name.c_str());
  if (symbol == nullptr) std::abort();
  return reinterpret_cast<Function>(symbol);
}

// The mutex evaluates waiters' conditions inside itself, while it is held: reads there are in
// order, but between our two statements. They are not looked at.
class IgnoreConditionReads {
 public:
  IgnoreConditionReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreConditionReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

void Acquire(const void* address) { __tsan_acquire(const_cast<void*>(address)); }
void Release(const void* address) { __tsan_release(const_cast<void*>(address)); }

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex4LockEv");
  const IgnoreConditionReads ignore;
  real(this);
  Acquire(this);
}

void Mutex::Unlock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex6UnlockEv");
  Release(this);
  const IgnoreConditionReads ignore;
  real(this);
}

bool Mutex::TryLock() {
  static const auto real = Real<bool (*)(Mutex*)>("5Mutex7TryLockEv");
  const IgnoreConditionReads ignore;
  const bool locked = real(this);
  if (locked) Acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex10ReaderLockEv");
  const IgnoreConditionReads ignore;
  real(this);
  Acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex12ReaderUnlockEv");
  Release(this);
  const IgnoreConditionReads ignore;
  real(this);
}

void Mutex::Await(const Condition& condition) {
  static const auto real =
      Real<void (*)(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  Release(this);
  const IgnoreConditionReads ignore;
  real(this, condition);
  Acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  Release(this);
  const IgnoreConditionReads ignore;
  const bool held = real(this, condition, timeout);
  Acquire(this);
  return held;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, Time)>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  Release(this);
  const IgnoreConditionReads ignore;
  const bool held = real(this, condition, deadline);
  Acquire(this);
  return held;
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto real =
      Real<void (*)(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  const IgnoreConditionReads ignore;
  real(this, condition);
  Acquire(this);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, Duration)>(
      "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  const IgnoreConditionReads ignore;
  const bool held = real(this, condition, timeout);
  Acquire(this);
  return held;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, Time)>(
      "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  const IgnoreConditionReads ignore;
  const bool held = real(this, condition, deadline);
  Acquire(this);
  return held;
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Real<void (*)(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  Release(mutex);
  const IgnoreConditionReads ignore;
  real(this, mutex);
  Acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto real = Real<bool (*)(CondVar*, Mutex*, Duration)>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  Release(mutex);
  const IgnoreConditionReads ignore;
  const bool timed_out = real(this, mutex, timeout);
  Acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto real =
      Real<bool (*)(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  Release(mutex);
  const IgnoreConditionReads ignore;
  const bool timed_out = real(this, mutex, deadline);
  Acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  static const auto real = Real<void (*)(Notification*)>("12Notification6NotifyEv");
  Release(this);
  const IgnoreConditionReads ignore;
  real(this);
}

void Notification::WaitForNotification() const {
  static const auto real =
      RealConst<void (*)(const Notification*)>("12Notification19WaitForNotificationEv");
  const IgnoreConditionReads ignore;
  real(this);
  Acquire(this);
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto real = RealConst<bool (*)(const Notification*, Duration)>(
      "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const IgnoreConditionReads ignore;
  const bool notified = real(this, timeout);
  Acquire(this);
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl

#endif  // defined(__SANITIZE_THREAD__)
