// The measurement of `pagoda bench attention`: decode attention over pages at each precision,
// beside a plain read of the same pages, in turn, so that what disturbs the machine disturbs all
// alike.
//
// Units    ns of wall time per token and kv head, all query heads of the group; GB = 1e9 bytes of
//          planes (codes, scales, means; no headers)
// Threads  one: the caller's; it starts its own
// Errors   RESOURCE_EXHAUSTED  the pages do not fit into free memory; CANCELLED: interrupted
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/json_output.h"
#include "storage/base/precision.h"

namespace pagoda::cli {

struct AttentionBenchOptions {
  std::vector<Precision> precisions = {Precision::kRaw16, Precision::kQ8, Precision::kQ4};
  std::vector<int32_t> head_dims = {64, 128};
  std::vector<int32_t> group_counts = {1, 3, 4, 8};
  std::vector<bool> shuffled = {false, true};  // the order in which pages lie in memory
  std::vector<int> thread_counts = {1};        // each takes its share of the tokens
  int rounds = 7;
  int64_t pool_bytes = int64_t{512} << 20;  // of each precision: beyond every cache
  bool float_codes = false;
  bool small_pages = false;  // of memory: 4 KiB, not the huge ones that the worker asks for
};

// Medians of the rounds.
struct AttentionBenchRow {
  Precision precision = Precision::kRaw16;
  int32_t head_dim = 0;
  int32_t group_count = 0;
  bool shuffled = false;
  int threads = 0;
  int64_t tokens = 0;
  double ns_per_token = 0;
  double bytes_per_second = 0;
  double bound_bytes_per_second = 0;  // the plain read
  double of_bound = 0;                // of pairs in one round
  double speedup_vs_raw16 = 0;        // likewise; 0 without raw16
  double scaling = 0;                 // likewise, over the first number of threads
};

absl::StatusOr<std::vector<AttentionBenchRow>> RunAttentionBench(
    const AttentionBenchOptions& options,
    const std::function<void(const std::string& step)>& progress);

std::string AttentionBenchText(const std::vector<AttentionBenchRow>& rows, const std::string& isa);
Json AttentionBenchJson(const std::vector<AttentionBenchRow>& rows, const std::string& isa);

}  // namespace pagoda::cli
