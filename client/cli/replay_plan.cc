#include "client/cli/replay_plan.h"

#include "absl/strings/str_cat.h"
#include "client/cli/model_shape.h"
#include "storage/base/status_macros.h"
#include "storage/replay/replay_policies.h"

namespace pagoda::cli {

absl::StatusOr<ReplayPlan> MakePlan(const ReplayFlags& flags) {
  ReplayPlan plan;
  plan.model = flags.model;
  plan.agentic.conversation_max = flags.conversations;
  PAGODA_ASSIGN_OR_RETURN(plan.shape, ParseModelShape(flags.model, flags.page_tokens));
  for (const std::string& name : flags.precisions) {
    PAGODA_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(name));
    plan.precisions.push_back(precision);
  }
  for (const std::string& name : flags.policies) {
    if (name == "all") {
      plan.policies = replay::ReplayPolicyNames();
      break;
    }
    PAGODA_RETURN_IF_ERROR(replay::CheckReplayPolicy(name));
    plan.policies.push_back(name);
  }
  for (const std::string& text : flags.bytes) {
    PAGODA_ASSIGN_OR_RETURN(const int64_t bytes, ParseAmount(text));
    plan.budget_bytes.push_back(bytes);
  }
  for (const std::string& text : flags.raw16_tokens) {
    PAGODA_ASSIGN_OR_RETURN(const int64_t tokens, ParseAmount(text));
    if (tokens > INT64_MAX / RawTokenBytes(plan.shape)) {
      return absl::InvalidArgumentError(absl::StrCat("--raw16-tokens ", text, " is too many"));
    }
    plan.budget_bytes.push_back(tokens * RawTokenBytes(plan.shape));
  }
  if (plan.budget_bytes.empty()) plan.shares = flags.shares;
  return plan;
}

absl::StatusOr<replay::Trace> ReadPlannedTrace(const std::string& path, const ReplayFlags& flags,
                                               const ReplayPlan& plan) {
  PAGODA_ASSIGN_OR_RETURN(replay::Trace trace, replay::ReadTrace(path, plan.agentic));
  if (flags.requests >= static_cast<int64_t>(trace.requests().size())) return trace;
  trace = trace.First(flags.requests);
  if (trace.block_count() > 0) return trace;
  return absl::InvalidArgumentError(absl::StrCat(path, ": its first ", flags.requests,
                                                 " requests have no block; raise --requests"));
}

}  // namespace pagoda::cli
