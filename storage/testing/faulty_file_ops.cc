#include "storage/testing/faulty_file_ops.h"

#include <algorithm>
#include <vector>

#include "storage/base/bytes.h"
#include "storage/extent.h"

namespace pagoda {
namespace {

// The first `bytes_max` bytes of the parts, and up to what direct I/O can do.
std::vector<iovec> Cut(const iovec* parts, int count, int64_t bytes_max) {
  std::vector<iovec> cut(parts, parts + count);
  if (bytes_max == 0) return cut;
  auto left = static_cast<size_t>(AlignUp(bytes_max, kExtentAlignBytes));
  for (size_t i = 0; i < cut.size(); ++i) {
    cut[i].iov_len = std::min(cut[i].iov_len, left);
    left -= cut[i].iov_len;
    if (left == 0) cut.resize(i + 1);
  }
  return cut;
}

}  // namespace

void FaultyFileOps::Fail(Call call, int error) {
  absl::MutexLock lock(&mutex_);
  faults_[call].error = error;
}

void FaultyFileOps::Shorten(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_max_ = bytes;
}

void FaultyFileOps::Hang(Call call) {
  absl::MutexLock lock(&mutex_);
  faults_[call].hangs = true;
}

void FaultyFileOps::Heal() {
  absl::MutexLock lock(&mutex_);
  faults_.clear();
  bytes_max_ = 0;
}

int64_t FaultyFileOps::fault_count() const {
  absl::MutexLock lock(&mutex_);
  return fault_count_;
}

int64_t FaultyFileOps::bytes_max() const {
  absl::MutexLock lock(&mutex_);
  return bytes_max_;
}

int FaultyFileOps::Meet(Call call) {
  absl::MutexLock lock(&mutex_);
  const auto fault = faults_.find(call);
  if (fault == faults_.end()) return 0;
  ++fault_count_;
  if (fault->second.error != 0) return -fault->second.error;
  const auto healed = [this, call]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !faults_.contains(call); };
  mutex_.Await(absl::Condition(&healed));
  return 0;
}

int FaultyFileOps::Open(const std::string& path, int flags) {
  const int failed = Meet(Call::kOpen);
  return failed != 0 ? failed : FileOps::Open(path, flags);
}

int64_t FaultyFileOps::ReadV(int fd, const iovec* parts, int count, int64_t offset) {
  const int failed = Meet(Call::kRead);
  if (failed != 0) return failed;
  const int64_t bytes = bytes_max();
  const std::vector<iovec> cut = Cut(parts, count, bytes);
  const int64_t done = FileOps::ReadV(fd, cut.data(), static_cast<int>(cut.size()), offset);
  return bytes == 0 ? done : std::min(done, bytes);
}

int64_t FaultyFileOps::WriteV(int fd, const iovec* parts, int count, int64_t offset) {
  const int failed = Meet(Call::kWrite);
  if (failed != 0) return failed;
  const int64_t bytes = bytes_max();
  const std::vector<iovec> cut = Cut(parts, count, bytes);
  const int64_t done = FileOps::WriteV(fd, cut.data(), static_cast<int>(cut.size()), offset);
  return bytes == 0 ? done : std::min(done, bytes);
}

int FaultyFileOps::Allocate(int fd, int64_t bytes) {
  const int failed = Meet(Call::kAllocate);
  return failed != 0 ? failed : FileOps::Allocate(fd, bytes);
}

int FaultyFileOps::SyncData(int fd) {
  const int failed = Meet(Call::kSync);
  return failed != 0 ? failed : FileOps::SyncData(fd);
}

}  // namespace pagoda
