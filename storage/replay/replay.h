// Feeds a trace to an eviction policy at a capacity and counts what a prefix cache would have hit.
//
// A request is first looked up as a whole, without a change: block hits are its blocks that are
// there, prefix hits those before the first that is not. Then each of its blocks is used once: one
// that is there is touched, one that is not is inserted.
//
//   kLeafFirst   what a tier does: blocks are used from the leaf to the root, then entries beyond
//                the capacity go, the blocks of the request in hand not excepted
//   kHitsFirst   the same with parents before children, as a tier gets new pages: what is there
//                is used from the leaf to the root, then what is not is inserted from the root on
//   kRootFirst   what a cache without chains does: used from the root to the leaf; when it is full,
//                one entry goes before one is inserted. With a policy that is not bound to leaves.
//
// Every block counts as one, the partial last one too. Time plays no part: policies know none.
//
// Threads    one a policy; the trace may be shared
// Errors     CANCELLED  `progress` returned false
// Cost       about 10 ns a reference that hits, 0.2 us one that misses
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "storage/policy/eviction_policy.h"
#include "storage/replay/trace.h"

namespace pagoda::replay {

struct ReplayCounts {
  int64_t requests = 0;
  int64_t blocks = 0;
  int64_t block_hits = 0;
  int64_t prefix_hits = 0;
  int64_t tokens = 0;      // of all inputs
  int64_t token_hits = 0;  // of the blocks that are prefix hits; the last may be a partial one
  bool operator==(const ReplayCounts&) const = default;

  double block_hit_ratio() const { return Ratio(block_hits, blocks); }
  double prefix_hit_ratio() const { return Ratio(prefix_hits, blocks); }
  double token_hit_ratio() const { return Ratio(token_hits, tokens); }

 private:
  static double Ratio(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

struct ReplayResult {
  ReplayCounts whole;
  ReplayCounts first_half;  // of the requests, rounded down
  ReplayCounts second_half;
};

enum class UseOrder { kLeafFirst, kHitsFirst, kRootFirst };

// Of the share of requests that are done; false stops.
using ReplayProgress = absl::FunctionRef<bool(double share)>;

// max(1, floor(share x different blocks)).
int64_t CapacityBlocks(const Trace& trace, double share);

// REQUIRES: an empty policy; capacity_blocks >= 1.
absl::StatusOr<ReplayResult> Replay(const Trace& trace, int64_t capacity_blocks,
                                    policy::EvictionPolicy& policy, UseOrder order,
                                    ReplayProgress progress);

// Belady's optimum with bypass, which knows the future: of all entries and the one that comes, the
// one whose next use is the farthest goes; of those that the same request uses next, the deepest.
absl::StatusOr<ReplayResult> ReplayBelady(const Trace& trace, int64_t capacity_blocks,
                                          ReplayProgress progress);

}  // namespace pagoda::replay
