// Drives a real daemon along a trace: each block becomes one page of a made-up model, each request
// a sequence that looks up its pages, fetches those that are hits and pushes the rest. One request
// at a time, at the times of the trace divided by a speed, or as fast as the daemon answers. Every
// fetched page is compared with what was pushed under its key.
//
// Threads    one
// Errors     those of the connection, explained; CANCELLED when interrupted. INVALID_ARGUMENT: a
//            request has more blocks than the daemon looks up at once. Pages that cannot be pushed
//            or fetched are counted, not errors: a cache may refuse.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "client/cli/connection.h"
#include "kernels/page_layout.h"
#include "storage/base/precision.h"
#include "storage/replay/trace.h"

namespace pagoda::cli {

struct LiveOptions {
  kernels::PageShape shape;
  double speed = 0;  // the trace's seconds in one of ours; 0: as fast as the daemon answers
};

struct LiveResult {
  int64_t requests = 0;
  int64_t blocks = 0;
  int64_t block_hits = 0;  // a prefix of each request
  int64_t fetched_pages = 0;
  int64_t fetched_bytes = 0;
  int64_t fetch_failures = 0;  // requests
  int64_t push_failures = 0;   // pages
  double seconds = 0;
  std::string path_lines;       // what went by which path, of ClientStats
  double late_seconds_max = 0;  // the most that a request began after its time
};

absl::StatusOr<LiveResult> ReplayLive(const replay::Trace& trace,
                                      const ConnectionOptions& connection,
                                      const LiveOptions& options,
                                      const std::function<void(double share)>& progress);

}  // namespace pagoda::cli
