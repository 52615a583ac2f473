// The system calls that extent files need, as an interface: so that tests can make each of them
// fail, cut short or hang. Nothing here retries, loops or interprets.
//
// Threads  every method from any thread
// Errors   a negative result is -errno
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>

namespace pagoda {

class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual int Open(const std::string& path, int flags);
  virtual int64_t Size(int fd);
  virtual int64_t ReadV(int fd, const iovec* parts, int count, int64_t offset);
  virtual int64_t WriteV(int fd, const iovec* parts, int count, int64_t offset);
  virtual int Allocate(int fd, int64_t bytes);  // fallocate from 0; the file has this size after it
  virtual int Truncate(int fd, int64_t bytes);
  virtual int SyncData(int fd);
  virtual int Close(int fd);
  virtual int Unlink(const std::string& path);
};

// The machine's own. Lives as long as the process.
FileOps& SystemFileOps();

}  // namespace pagoda
