#include "storage/file_ops.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace pagoda {
namespace {

template <typename T>
T OrErrno(T result) {
  return result < 0 ? -errno : result;
}

}  // namespace

int FileOps::Open(const std::string& path, int flags) {
  return OrErrno(open(path.c_str(), flags | O_CLOEXEC, 0600));
}

int64_t FileOps::Size(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return -errno;
  return info.st_size;
}

int64_t FileOps::ReadV(int fd, const iovec* parts, int count, int64_t offset) {
  return OrErrno(preadv(fd, parts, count, offset));
}

int64_t FileOps::WriteV(int fd, const iovec* parts, int count, int64_t offset) {
  return OrErrno(pwritev(fd, parts, count, offset));
}

int FileOps::Allocate(int fd, int64_t bytes) {
  return OrErrno(fallocate(fd, /*mode=*/0, /*offset=*/0, bytes));
}

int FileOps::Truncate(int fd, int64_t bytes) { return OrErrno(ftruncate(fd, bytes)); }

int FileOps::SyncData(int fd) { return OrErrno(fdatasync(fd)); }

int FileOps::Close(int fd) { return OrErrno(close(fd)); }

int FileOps::Unlink(const std::string& path) { return OrErrno(unlink(path.c_str())); }

FileOps& SystemFileOps() {
  static FileOps* ops = new FileOps;
  return *ops;
}

}  // namespace pagoda
