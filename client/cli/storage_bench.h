// The measurements of `pagoda bench storage`: the store in this process against the disk that it
// stands on, in the same run and folder. Ratios are medians of pairs that alternate, so that what
// disturbs the machine for a while disturbs both sides.
//
// Units    seconds; bytes per second of stored pages, headers and padding counted
// Threads  one: the caller's; it starts its own
// Errors   whatever fails first, in one line
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/json_output.h"

namespace pagoda::cli {

struct StorageBenchOptions {
  std::string folder;  // on the disk to measure; what is made in it is removed
  // Performance. The quick form has the same measures at a tenth of the size.
  int pairs = 5;
  int64_t disk_pages = 256;  // of 2 MiB, written and read back 64 at a time
  int64_t restart_pages = 1'000'000;
  double busy_seconds = 2;  // of each half of a pair
  double busy_write_rate = 200e6;

  static StorageBenchOptions Quick();
};

struct RatePairs {
  std::vector<double> rates;   // of the store
  std::vector<double> probes;  // of the disk alone, in the same round
  double ratio() const;
};

struct DiskResult {
  std::string tool;  // fio-3.33, or our own loop
  bool direct_io = false;
  int depth = 0;
  RatePairs read;
  RatePairs write;
};

struct RestartResult {
  int64_t pages = 0;
  double seconds = 0;
  int64_t rss_bytes = 0;
};

struct DirectoryResult {
  int64_t pages = 0;
  double bytes_per_page = 0;
};

struct LookupResult {
  int64_t keys = 0;            // of one lookup
  double keys_per_second = 0;  // of one core, lease and touch included
};

struct BusyResult {
  std::vector<double> idle_p99;
  std::vector<double> busy_p99;
  double write_rate = 0;  // reached while busy
  double ratio() const;
};

// Fields of measures that were not asked stay empty.
struct StorageBenchReport {
  std::string folder;
  std::optional<DiskResult> disk;
  std::optional<RestartResult> restart;
  std::optional<DirectoryResult> directory;
  std::optional<LookupResult> lookup;
  std::optional<BusyResult> busy;
};

using BenchProgress = std::function<void(const std::string& step)>;

absl::StatusOr<DiskResult> MeasureDisk(const StorageBenchOptions& options,
                                       const BenchProgress& progress);
absl::StatusOr<RestartResult> MeasureRestart(const StorageBenchOptions& options,
                                             const BenchProgress& progress);
absl::StatusOr<DirectoryResult> MeasureDirectory(const StorageBenchOptions& options,
                                                 const BenchProgress& progress);
absl::StatusOr<LookupResult> MeasureLookup(const BenchProgress& progress);
absl::StatusOr<BusyResult> MeasureBusy(const StorageBenchOptions& options,
                                       const BenchProgress& progress);

// The child of MeasureRestart: opens the store in `folder` and prints what it took.
absl::Status OpenStoreAndReport(const std::string& folder);

// Names for --only, in the order of measuring: disk, restart, directory, lookup, busy.
absl::Span<const absl::string_view> StorageMeasures();
// Empty: all.
absl::StatusOr<StorageBenchReport> RunStorageBench(const StorageBenchOptions& options,
                                                   const std::vector<std::string>& only,
                                                   const BenchProgress& progress);

std::string StorageBenchText(const StorageBenchReport& report);
Json StorageBenchJson(const StorageBenchReport& report);

}  // namespace pagoda::cli
