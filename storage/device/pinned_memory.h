// Which chunks of host memory the device has been told of. A chunk is registered when it is first
// needed, so that a start does not wait for all of them; one that the device or a limit refuses
// stays plain: copies to and from it work, slower, and partly while the call that makes them waits.
//
// Units      bytes
// Threads    every method from any thread; a chunk that another thread is registering is plain
//            until that is done: nobody waits for it
// Ownership  the runtime outlives this; a chunk is forgotten before it is unmapped
// Limits     bytes_max in all; what is beyond stays plain
// Cost       Pin of a new chunk: a call to the driver, milliseconds for 64 MiB whose pages are
//            there (pretouch.h); of a known one: a look-up
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/bytes.h"
#include "storage/device/runtime.h"

namespace pagoda {

class PinnedMemory {
 public:
  struct Report {
    int64_t pinned_bytes = 0;
    int64_t plain_bytes = 0;  // asked for, and refused
    absl::Status refusal;     // why the first was; OK: none was
  };

  PinnedMemory(DeviceRuntime& runtime, int64_t bytes_max)
      : runtime_(runtime), bytes_max_(bytes_max) {}
  ~PinnedMemory();

  // Whether the chunk is registered now. Begins and ends at multiples of 4096; always the same for
  // the same chunk.
  bool Pin(MutableByteSpan chunk) ABSL_LOCKS_EXCLUDED(mutex_);
  // REQUIRES: no unfinished copy touches it.
  void Forget(const std::byte* chunk) ABSL_LOCKS_EXCLUDED(mutex_);
  Report report() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    int64_t bytes = 0;
    bool busy = true;                                // being registered
    std::unique_ptr<HostRegistration> registration;  // null: plain
  };

  // Constant after construction.
  DeviceRuntime& runtime_;
  const int64_t bytes_max_;

  // Guarded by mutex_. Nothing is registered while it is held.
  mutable absl::Mutex mutex_;
  std::map<const std::byte*, Entry> chunks_ ABSL_GUARDED_BY(mutex_);
  Report report_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda
