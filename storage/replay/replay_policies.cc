#include "storage/replay/replay_policies.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "storage/base/status_macros.h"
#include "storage/policy/make_policy.h"

namespace pagoda::replay {
namespace {

constexpr absl::string_view kBelady = "belady";

// Those whose name here is not their name in a tier, or that ask who a new entry follows.
struct Alias {
  absl::string_view name;
  absl::string_view policy;
  UseOrder order;
};
constexpr Alias kAliases[] = {
    {"lru-root-first", "lru", UseOrder::kRootFirst},
    {"lfu", "lfu", UseOrder::kRootFirst},
    {"lfu-leaf-first", "lfu", UseOrder::kLeafFirst},
    {"cohort", "cohort", UseOrder::kHitsFirst},
};

Alias Resolve(absl::string_view name) {
  for (const Alias& alias : kAliases) {
    if (alias.name == name) return alias;
  }
  return {name, name, UseOrder::kLeafFirst};
}

}  // namespace

std::vector<std::string> ReplayPolicyNames() {
  std::vector<std::string> names;
  const auto add = [&names](absl::string_view name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  };
  for (const absl::string_view name : policy::PolicyNames()) {
    add(name);
    for (const Alias& alias : kAliases) {
      if (alias.policy == name) add(alias.name);
    }
  }
  add(kBelady);
  return names;
}

absl::Status CheckReplayPolicy(absl::string_view name) {
  const std::vector<std::string> names = ReplayPolicyNames();
  if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown policy \"%s\"; known are %s", name, absl::StrJoin(names, ", ")));
}

absl::StatusOr<ReplayResult> ReplayPolicy(const Trace& trace, int64_t capacity_blocks,
                                          absl::string_view name, ReplayProgress progress) {
  PAGODA_RETURN_IF_ERROR(CheckReplayPolicy(name));
  if (name == kBelady) return ReplayBelady(trace, capacity_blocks, progress);
  const Alias alias = Resolve(name);
  policy::PolicyOptions options;
  options.name = std::string(alias.policy);
  options.leaves_only = alias.order != UseOrder::kRootFirst;
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<policy::EvictionPolicy> policy,
                          policy::MakePolicy(options));
  return Replay(trace, capacity_blocks, *policy, alias.order, progress);
}

}  // namespace pagoda::replay
