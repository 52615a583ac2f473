// Eviction policies by name: what configuration and command lines choose from.
//
// Errors     INVALID_ARGUMENT  an unknown name (the message lists the known ones), or a constant
//            out of range
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "storage/policy/eviction_policy.h"

namespace pagoda::policy {

struct PolicyOptions {
  std::string name = "lru";
  bool leaves_only = true;  // see EvictionPolicy; false only in offline comparisons
};

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakePolicy(const PolicyOptions& options);
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakePolicy(absl::string_view name);

// All names, the default first.
absl::Span<const absl::string_view> PolicyNames();

}  // namespace pagoda::policy
