// What a replay may compare: the policies of the daemon's tiers by their names there, and others
// that only a replay has.
//
//   lru, attention, hybrid, s3fifo, cohort  those of policy/make_policy.h, leaf first
//   lfu-leaf-first                        a tier's lfu
//   lru-root-first, lfu                   without chains, root first: as the literature counts them
//   belady                                the optimum, offline
//
// Traces carry no attention mass: there attention is lru, and hybrid drops that term.
//
// Errors     INVALID_ARGUMENT  an unknown name; the message lists the known ones
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/replay/replay.h"

namespace pagoda::replay {

std::vector<std::string> ReplayPolicyNames();
absl::Status CheckReplayPolicy(absl::string_view name);

absl::StatusOr<ReplayResult> ReplayPolicy(const Trace& trace, int64_t capacity_blocks,
                                          absl::string_view name, ReplayProgress progress);

}  // namespace pagoda::replay
