// How the SSD tier is set up.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace pagoda {

struct SsdOptions {
  // Behaviour.
  std::string path;                            // created if absent; one daemon per folder
  int64_t capacity_bytes = int64_t{64} << 30;  // page bytes; RocksDB's own files need ~10 % more
  absl::Duration flush_period = absl::Seconds(1);  // what a kill may lose; 0: only on demand

  // Performance. Defaults measured for pages of 0.5 to 8 MiB.
  bool direct_io = true;  // falls back with one log line where unsupported
  int64_t write_buffer_bytes = int64_t{256} << 20;  // one memtable; four may exist during bursts
  int64_t blob_file_bytes = int64_t{256} << 20;
  int64_t block_cache_bytes = int64_t{32} << 20;  // index and metadata only, never page bytes
  int background_jobs = 4;
  int64_t background_bytes_per_second_max = 0;  // flush and compaction together; 0: no limit

  // INVALID_ARGUMENT names the field and what is accepted.
  absl::Status Validate() const;
};

}  // namespace pagoda
