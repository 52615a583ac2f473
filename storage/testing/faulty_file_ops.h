// The system calls of extent files, failing on demand: with any errno, cut short, or hanging.
//
// Threads  every method from any thread
#pragma once

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/file_ops.h"

namespace pagoda {

class FaultyFileOps : public FileOps {
 public:
  enum class Call { kOpen, kRead, kWrite, kAllocate, kSync };

  // From now on every such call fails with this errno.
  void Fail(Call call, int error) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on no read or write moves more than so many bytes.
  void Shorten(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on every such call waits for Heal, and then works.
  void Hang(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  // All of it ends.
  void Heal() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls that have failed or hung since the beginning.
  int64_t fault_count() const ABSL_LOCKS_EXCLUDED(mutex_);

  int Open(const std::string& path, int flags) override;
  int64_t ReadV(int fd, const iovec* parts, int count, int64_t offset) override;
  int64_t WriteV(int fd, const iovec* parts, int count, int64_t offset) override;
  int Allocate(int fd, int64_t bytes) override;
  int SyncData(int fd) override;

 private:
  struct Fault {
    int error = 0;
    bool hangs = false;
  };
  // 0, or -errno.
  int Meet(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t bytes_max() const ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<Call, Fault> faults_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_max_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: as many as are asked
  int64_t fault_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace pagoda
