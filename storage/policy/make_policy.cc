#include "storage/policy/make_policy.h"

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "storage/base/status_macros.h"
#include "storage/policy/attention_policy.h"
#include "storage/policy/cohort_policy.h"
#include "storage/policy/lfu_policy.h"
#include "storage/policy/lru_policy.h"
#include "storage/policy/s3fifo_policy.h"

namespace pagoda::policy {
namespace {

using Maker = absl::StatusOr<std::unique_ptr<EvictionPolicy>> (*)(const PolicyOptions& options);

template <typename Policy>
absl::StatusOr<std::unique_ptr<EvictionPolicy>> Make(const PolicyOptions& options) {
  return std::make_unique<Policy>(options.leaves_only);
}

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeHybrid(const PolicyOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.hybrid.Validate());
  return std::make_unique<HybridPolicy>(options.hybrid, options.leaves_only);
}

struct Named {
  absl::string_view name;
  Maker make;
};

constexpr Named kPolicies[] = {
    {"lru", Make<LruPolicy>}, {"lfu", Make<LfuPolicy>},       {"attention", Make<AttentionPolicy>},
    {"hybrid", MakeHybrid},   {"s3fifo", Make<S3FifoPolicy>}, {"cohort", Make<CohortPolicy>},
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
  PolicyOptions options;
  options.name = std::string(name);
  return MakePolicy(options);
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
