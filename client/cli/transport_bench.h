// The measurements of `pagoda bench transport`: pages between a daemon and clients by every path,
// beside what carries nothing but the bytes.
//
//   shm-map    Map() and every page's spans; nothing is read or copied
//   shm-copy   fetch: into the caller's memory; push: from it into the staging area, and from there
//   grpc-unix, grpc-tcp   the same over gRPC
//   memcpy     the same bytes out of the same shared memory into the same memory, as many threads
//   bare-unix, bare-tcp   a stream of gRPC alone, messages of 1 MiB at most, into the same memory;
//   a
//              call for each object
//
// All paths of a cell take turns within a round, so that ratios hold on a busy machine too.
//
// Threads    one: the caller's; one thread for each client is started
// Errors     whatever fails first, in one line; every fetched byte over gRPC is verified
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/transport_report.h"

namespace pagoda::cli {

struct TransportOptions {
  // Of one object, powers of two from 64 KiB: a page of that size up to 8 MiB, several of those in
  // one call beyond.
  std::vector<int64_t> bytes = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 64 << 20};
  std::vector<int> clients = {1, 4, 16};
  int rounds = 5;
  absl::Duration slice = absl::Milliseconds(60);   // of one path in one round, one object at least
  int64_t working_set_bytes = int64_t{128} << 20;  // of all clients: more than caches hold
  int64_t map_pages = 1000;                        // of the smallest size, mapped at once
  int64_t touch_bytes = int64_t{3} << 30;          // each daemon's memory, used once before
};

absl::StatusOr<TransportReport> RunTransportBench(
    const TransportOptions& options, const std::function<void(const std::string& step)>& progress);

}  // namespace pagoda::cli
