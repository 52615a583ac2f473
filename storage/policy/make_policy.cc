#include "storage/policy/make_policy.h"

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "storage/policy/lru_policy.h"

namespace pagoda::policy {
namespace {

using Maker = std::unique_ptr<EvictionPolicy> (*)(const PolicyOptions& options);

template <typename Policy>
std::unique_ptr<EvictionPolicy> Make(const PolicyOptions& options) {
  return std::make_unique<Policy>(options.leaves_only);
}

struct Named {
  absl::string_view name;
  Maker make;
};

constexpr Named kPolicies[] = {
    {"lru", Make<LruPolicy>},
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakePolicy(const PolicyOptions& options) {
  for (const Named& policy : kPolicies) {
    if (policy.name == options.name) return policy.make(options);
  }
  return absl::InvalidArgumentError(absl::StrFormat("unknown eviction policy \"%s\"; known are %s",
                                                    options.name,
                                                    absl::StrJoin(PolicyNames(), ", ")));
}

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakePolicy(absl::string_view name) {
  return MakePolicy(PolicyOptions{.name = std::string(name)});
}

absl::Span<const absl::string_view> PolicyNames() {
  static const auto* const names = [] {
    auto* const all = new std::vector<absl::string_view>;
    for (const Named& policy : kPolicies) all->push_back(policy.name);
    return all;
  }();
  return *names;
}

}  // namespace pagoda::policy
