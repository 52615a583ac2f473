// How fast a disk is without us: fio where it is installed, else a loop of our own; both with
// direct I/O, so that no page cache flatters them.
//
// Units      bytes per second.   Threads  one
// Ownership  makes one file in the folder; the destructor removes it
// Errors     UNAVAILABLE names the step, the path and the system's reason
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace pagoda::cli {

struct ProbeLoad {
  int64_t block_bytes = 2 << 20;
  int depth = 1;                          // requests at a time
  int64_t file_bytes = int64_t{1} << 29;  // of the file that is read or written
  int64_t read_bytes = int64_t{1} << 27;  // how much of it is read
};

class DiskProbe {
 public:
  DiskProbe(std::string folder, const ProbeLoad& load);
  ~DiskProbe();
  DiskProbe(const DiskProbe&) = delete;
  DiskProbe& operator=(const DiskProbe&) = delete;

  // "fio-3.33", or "own O_DIRECT loop".
  const std::string& tool() const { return tool_; }

  // Blocks at random offsets of a file that was written before.
  absl::StatusOr<double> RandomRead();
  // A new file from its beginning to its end, fsync included.
  absl::StatusOr<double> SequentialWrite();

 private:
  absl::StatusOr<double> Fio(const std::string& kind, int64_t bytes) const;
  absl::StatusOr<double> OwnRead() const;
  absl::StatusOr<double> OwnWrite() const;

  const ProbeLoad load_;
  const std::string path_;
  const std::string tool_;
  uint32_t read_count_ = 0;  // seeds, so that no two reads take the same blocks
};

}  // namespace pagoda::cli
