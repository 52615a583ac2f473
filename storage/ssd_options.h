// How the SSD tier is set up.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace rocksdb {
class Env;
}  // namespace rocksdb

namespace pagoda {

class Clock;
class FileOps;

// What stands between the tier and the machine. Null: the machine's own. They must outlive the
// tier.
struct SsdSystem {
  FileOps* files = nullptr;     // extent files
  rocksdb::Env* env = nullptr;  // RocksDB's files
  const Clock* clock = nullptr;
};

struct SsdOptions {
  // Behaviour.
  std::string path;                                // created if absent; one daemon per folder
  int64_t capacity_bytes = int64_t{64} << 30;      // page bytes; the disk needs about 7 % more
  absl::Duration flush_period = absl::Seconds(1);  // what a kill may lose; 0: only on demand

  // Performance. Defaults measured for pages of 0.5 to 8 MiB.
  bool direct_io = true;                           // falls back with one log line where unsupported
  int64_t extent_file_bytes = int64_t{256} << 20;  // wanted; see file_bytes()
  int64_t write_bytes_per_second_max =
      0;  // page bytes, so that reads keep their share; 0: no limit
  int64_t index_buffer_bytes = int64_t{8} << 20;  // one memtable of records, 30000 pages
  int64_t block_cache_bytes = int64_t{8} << 20;   // records only, never page bytes
  int background_jobs = 2;

  SsdSystem system;

  // Size of an extent file: as wanted, but small capacities are cut in about eight, and large ones
  // in no more than 256, so that open descriptors are bounded.
  int64_t file_bytes() const;
  // Beyond capacity_bytes there is room for what was freed and waits for a flush, and for gaps.
  int64_t file_count_max() const;

  // INVALID_ARGUMENT names the field and what is accepted.
  absl::Status Validate() const;
};

}  // namespace pagoda
