// The measurements of `pagoda bench`: pages through a daemon and through a bare gRPC stream, in
// turn.
//
// Threads    one: the caller's; it starts its own
// Errors     whatever fails first, in one line; every fetched byte is verified by the client
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/bench_report.h"
#include "client/cli/connection.h"

namespace pagoda::cli {

struct BenchOptions {
  kernels::PageShape shape{30, 3, 64, 64};
  int64_t page_count = 128;  // in all, shared among the threads
  int thread_count = 1;      // clients at the same time, each with a connection of its own
  int round_count = 5;
  int64_t message_bytes = 1 << 20;  // of the bare stream
  int64_t lookup_keys = 1000;
  int64_t lookup_rounds = 300;
};

// `bare_address` is where the bare stream's server listens: the same kind of socket as the
// daemon's. `progress` hears what begins.
absl::StatusOr<BenchReport> RunBench(const BenchOptions& options,
                                     const ConnectionOptions& connection,
                                     const std::string& bare_address,
                                     const std::function<void(const std::string& step)>& progress);

}  // namespace pagoda::cli
