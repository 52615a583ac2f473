#include "storage/replay/replay.h"

#include <cmath>

#include "storage/base/check.h"
#include "storage/replay/replay_walk.h"

namespace pagoda::replay {
namespace {

using policy::EntryId;
using policy::EvictionPolicy;
using policy::kNoEntry;

constexpr int64_t kBlockBytes = 1;

void UseLeafFirst(absl::Span<const BlockRun> runs, EvictionPolicy& policy) {
  for (size_t r = runs.size(); r-- > 0;) {
    const BlockRun& run = runs[r];
    const EntryId before = r == 0 ? kNoEntry : runs[r - 1].first + runs[r - 1].count - 1;
    for (uint32_t k = run.count; k-- > 0;) {
      const EntryId id = run.first + k;
      if (policy.resident(id)) {
        policy.Touch(id);
      } else {
        policy.Insert({id, k == 0 ? before : id - 1, kBlockBytes, FingerprintOf(id)});
      }
    }
  }
}

void UseHitsFirst(absl::Span<const BlockRun> runs, EvictionPolicy& policy) {
  for (size_t r = runs.size(); r-- > 0;) {
    for (uint32_t k = runs[r].count; k-- > 0;) {
      if (policy.resident(runs[r].first + k)) policy.Touch(runs[r].first + k);
    }
  }
  EntryId parent = kNoEntry;
  for (const BlockRun& run : runs) {
    for (uint32_t k = 0; k < run.count; ++k) {
      const EntryId id = run.first + k;
      if (!policy.resident(id)) policy.Insert({id, parent, kBlockBytes, FingerprintOf(id)});
      parent = id;
    }
  }
}

void UseRootFirst(absl::Span<const BlockRun> runs, int64_t capacity_blocks,
                  EvictionPolicy& policy) {
  EntryId parent = kNoEntry;
  for (const BlockRun& run : runs) {
    for (uint32_t k = 0; k < run.count; ++k) {
      const EntryId id = run.first + k;
      if (policy.resident(id)) {
        policy.Touch(id);
      } else {
        EvictDownTo(capacity_blocks - kBlockBytes, policy);
        policy.Insert({id, parent, kBlockBytes, FingerprintOf(id)});
      }
      parent = id;
    }
  }
}

}  // namespace

int64_t CapacityBlocks(const Trace& trace, double share) {
  const double blocks = std::floor(share * static_cast<double>(trace.unique_count()));
  return std::max<int64_t>(1, static_cast<int64_t>(blocks));
}

absl::StatusOr<ReplayResult> Replay(const Trace& trace, int64_t capacity_blocks,
                                    EvictionPolicy& policy, UseOrder order,
                                    ReplayProgress progress) {
  PAGODA_CHECK(capacity_blocks >= 1);
  PAGODA_CHECK(policy.entry_count() == 0);
  policy.set_capacity_bytes(capacity_blocks * kBlockBytes);
  return WalkRequests(trace, policy, progress, [&](size_t, const TraceRequest& request) {
    if (order == UseOrder::kRootFirst) {
      UseRootFirst(trace.runs(request), capacity_blocks, policy);
    } else {
      order == UseOrder::kHitsFirst ? UseHitsFirst(trace.runs(request), policy)
                                    : UseLeafFirst(trace.runs(request), policy);
      EvictDownTo(capacity_blocks * kBlockBytes, policy);
    }
  });
}

}  // namespace pagoda::replay
