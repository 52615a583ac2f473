// What all replays share: the walk over the requests, and the counting.
#pragma once

#include <algorithm>
#include <cstdint>

#include "storage/replay/replay.h"

namespace pagoda::replay {

// Calls `use(request_index, request)` after each lookup.
template <typename Use>
absl::StatusOr<ReplayResult> WalkRequests(const Trace& trace, const policy::EvictionPolicy& policy,
                                          ReplayProgress progress, Use use) {
  constexpr size_t kProgressRequests = 64;
  ReplayResult result;
  ReplayCounts& whole = result.whole;
  const size_t request_count = trace.requests().size();
  for (size_t i = 0; i < request_count; ++i) {
    if (i == request_count / 2) result.first_half = whole;
    const auto share = static_cast<double>(i) / static_cast<double>(request_count);
    if (i % kProgressRequests == 0 && !progress(share)) return absl::CancelledError("replay");
    const TraceRequest& request = trace.requests()[i];
    int64_t hits = 0;
    int64_t prefix = 0;
    int64_t at = 0;
    for (const BlockRun& run : trace.runs(request)) {
      for (uint32_t k = 0; k < run.count; ++k, ++at) {
        if (!policy.resident(run.first + k)) continue;
        if (hits++ == at) ++prefix;
      }
    }
    ++whole.requests;
    whole.blocks += request.block_count;
    whole.block_hits += hits;
    whole.prefix_hits += prefix;
    whole.tokens += request.tokens;
    whole.token_hits += std::min(prefix * trace.block_tokens(), request.tokens);
    use(i, request);
  }
  const ReplayCounts& first = result.first_half;
  result.second_half.requests = whole.requests - first.requests;
  result.second_half.blocks = whole.blocks - first.blocks;
  result.second_half.block_hits = whole.block_hits - first.block_hits;
  result.second_half.prefix_hits = whole.prefix_hits - first.prefix_hits;
  result.second_half.tokens = whole.tokens - first.tokens;
  result.second_half.token_hits = whole.token_hits - first.token_hits;
  return result;
}

// Removes as many entries as stand beyond `bytes`.
inline void EvictDownTo(int64_t bytes, policy::EvictionPolicy& policy) {
  const int64_t excess_bytes = policy.bytes() - bytes;
  if (excess_bytes <= 0) return;
  for (const policy::EntryId id :
       policy.PickVictims(excess_bytes, [](policy::EntryId) { return true; })) {
    policy.Remove(id);
  }
}

// A hash of the id, as a page key is one of its tokens (SplitMix64's last step).
inline uint64_t FingerprintOf(uint32_t id) {
  uint64_t z = id * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace pagoda::replay
