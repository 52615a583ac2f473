// One client of the library, shared by the Python objects that hang on it. After Close() calls are
// refused; who is inside one finishes, and the last to leave takes the client down.
//
// Threads    every method from any thread, without the GIL: Close() and destructors join threads
// Errors     FAILED_PRECONDITION  closed, or taken along into a forked child
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"
#include "python_thread.h"

namespace pagoda::python {

// A pointer to what has threads. In a forked child, which has none of them, it is dropped unseen:
// to destroy it there would wait for ever.
template <typename T>
class InThisProcess {
 public:
  InThisProcess() = default;
  explicit InThisProcess(std::shared_ptr<T> object)
      : object_(std::move(object)), generation_(ForkGeneration()) {}
  ~InThisProcess() { Reset(); }
  InThisProcess(const InThisProcess&) = delete;
  InThisProcess& operator=(const InThisProcess&) = delete;

  void Set(std::shared_ptr<T> object) {
    object_ = std::move(object);
    generation_ = ForkGeneration();
  }
  bool forked() const { return object_ != nullptr && generation_ != ForkGeneration(); }
  const std::shared_ptr<T>& get() const { return object_; }
  void Reset() {
    if (forked()) new std::shared_ptr<T>(std::move(object_));
    object_ = nullptr;
  }
  // The pointer, to be dropped where no lock is held.
  std::shared_ptr<T> Take() {
    if (forked()) Reset();
    return std::move(object_);
  }

 private:
  std::shared_ptr<T> object_;
  int generation_ = 0;
};

// What a client has given out and takes back when it is closed.
class Closeable {
 public:
  virtual ~Closeable() = default;
  virtual void Close() = 0;
};

class SharedClient {
 public:
  static absl::StatusOr<std::shared_ptr<SharedClient>> Open(client::ClientOptions options);
  ~SharedClient() { Close(); }

  absl::StatusOr<std::shared_ptr<client::Client>> Get() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Closed before the client is. At once if that is closed already.
  void CloseWithThis(const std::shared_ptr<Closeable>& child) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit SharedClient(std::shared_ptr<client::Client> client) : client_(std::move(client)) {}

  mutable absl::Mutex mutex_;
  InThisProcess<client::Client> client_ ABSL_GUARDED_BY(mutex_);  // null: closed
  std::vector<std::weak_ptr<Closeable>> children_ ABSL_GUARDED_BY(mutex_);
};

// All that are open.
void CloseAllClients();

}  // namespace pagoda::python
