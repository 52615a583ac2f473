#include "client/cli/replay_live.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/available_memory.h"
#include "client/cli/interrupt.h"
#include "client/cli/live_replay.h"
#include "client/cli/live_report.h"
#include "client/cli/model_shape.h"
#include "client/cli/progress_line.h"
#include "client/cli/self_daemon.h"
#include "client/cli/units.h"
#include "storage/base/status_macros.h"
#include "storage/policy/make_policy.h"
#include "storage/replay/replay_policies.h"

namespace pagoda::cli {
namespace {

// What a live run is compared with.
struct LiveCapacity {
  int64_t bytes = 0;
  int64_t blocks = 0;
};

// One page a block: block_tokens play no part.
LiveCapacity CapacityOf(const ReplayPlan& plan, const replay::Trace& trace) {
  const int64_t page_bytes = StoredPageBytes(plan.shape, plan.precisions.front());
  LiveCapacity capacity;
  capacity.blocks = plan.shares.empty() ? plan.budget_bytes.front() / page_bytes
                                        : replay::CapacityBlocks(trace, plan.shares.front());
  capacity.bytes = capacity.blocks * page_bytes;
  return capacity;
}

// A daemon of our own whose host memory holds, between its marks, as much as was asked. Pages come
// as raw16 and are encoded behind the push: beyond the marks there is room for those that wait.
absl::StatusOr<std::unique_ptr<SelfDaemon>> StartLiveDaemon(const ReplayPlan& plan,
                                                            const LiveCapacity& capacity) {
  SelfDaemonOptions options;
  options.ladder = plan.precisions.front();
  options.policies.host.eviction = plan.policies.front();
  constexpr int64_t kWaitingPages = 256;
  const bool encodes = plan.precisions.front() < Precision::kRaw16;
  const double waiting_bytes =
      encodes ? static_cast<double>(kWaitingPages * StoredPageBytes(plan.shape, Precision::kRaw16))
              : 0;
  const double marked_bytes = static_cast<double>(capacity.bytes) / 0.89;
  const double host_bytes = marked_bytes + waiting_bytes;
  options.policies.host.marks = {.start = 0.90 * marked_bytes / host_bytes,
                                 .stop = 0.88 * marked_bytes / host_bytes,
                                 .hard = 0.98};
  options.host_bytes = static_cast<int64_t>(host_bytes);
  const int64_t free_bytes = AvailableMemoryBytes();
  if (options.host_bytes > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d pages of %s take %s, %s of memory are free; give a smaller --model, --share or --bytes",
        capacity.blocks, plan.model, FormatBytes(static_cast<double>(options.host_bytes)),
        FormatBytes(static_cast<double>(free_bytes))));
  }
  return SelfDaemon::Start(options);
}

// The daemon that is there: its largest tier is what counts.
absl::StatusOr<LiveCapacity> CapacityOf(const ReplayPlan& plan,
                                        const ConnectionOptions& connection) {
  PAGODA_ASSIGN_OR_RETURN(const v1::StatusResponse status, AdminConnection(connection).Status());
  LiveCapacity capacity;
  for (const v1::TierStatus& tier : status.tiers()) {
    capacity.bytes = std::max(capacity.bytes, static_cast<int64_t>(tier.capacity_bytes()));
  }
  capacity.blocks =
      std::max<int64_t>(1, capacity.bytes / StoredPageBytes(plan.shape, plan.precisions.front()));
  return capacity;
}

}  // namespace

std::string CheckReplayLive(const ReplayFlags& flags) {
  if (flags.traces.size() != 1) return "--live takes one trace";
  if (!flags.plot.empty()) return "--live draws no --plot";
  if (flags.policies.size() != 1 || flags.precisions.size() != 1) {
    return "--live takes one --policy and one --precision";
  }
  if (flags.policies.front() == "all") return "--live takes one --policy";
  if (!flags.own_daemon()) return "";
  if (flags.share_flag->count() + flags.bytes.size() + flags.raw16_tokens.size() == 0) {
    return "--live needs a capacity for the daemon it brings: --share S, --bytes B, or --daemon";
  }
  if (std::max({flags.shares.size() * (flags.share_flag->count() > 0 ? 1 : 0), flags.bytes.size(),
                flags.raw16_tokens.size()}) != 1) {
    return "--live takes one capacity";
  }
  if (absl::c_linear_search(policy::PolicyNames(), flags.policies.front())) return "";
  return absl::StrCat("the daemon has no policy ", flags.policies.front(), "; choose ",
                      absl::StrJoin(policy::PolicyNames(), ", "));
}

absl::Status RunReplayLive(const ReplayFlags& flags) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(flags.json));
  PAGODA_ASSIGN_OR_RETURN(const ReplayPlan plan, MakePlan(flags));
  CatchInterrupts();
  PAGODA_ASSIGN_OR_RETURN(const replay::Trace trace,
                          ReadPlannedTrace(flags.traces.front(), flags, plan));
  ConnectionOptions connection = flags.connection;
  LiveCapacity capacity;
  std::unique_ptr<SelfDaemon> self;
  if (flags.own_daemon()) {
    capacity = CapacityOf(plan, trace);
    if (capacity.blocks < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the capacity holds no page of ", plan.model, "; give more bytes"));
    }
    PAGODA_ASSIGN_OR_RETURN(self, StartLiveDaemon(plan, capacity));
    connection.daemon = self->address();
    connection.token.clear();
  } else {
    PAGODA_ASSIGN_OR_RETURN(capacity, CapacityOf(plan, connection));
  }
  PAGODA_ASSIGN_OR_RETURN(const replay::ReplayResult simulated,
                          replay::ReplayPolicy(trace, capacity.blocks, plan.policies.front(),
                                               [](double) { return !Interrupted(); }));
  absl::StatusOr<LiveResult> live;
  {
    ProgressLine line(stderr, absl::StrCat("replaying ", trace.name(), " through ",
                                           self != nullptr ? "a daemon" : connection.daemon));
    live = ReplayLive(trace, connection, {plan.shape, flags.speed},
                      [&line](double share) { line.set_share(share); });
  }
  PAGODA_RETURN_IF_ERROR(live.status());
  const LiveComparison comparison{.trace = trace.name(),
                                  .daemon = self != nullptr ? "in-process" : connection.daemon,
                                  .policy = plan.policies.front(),
                                  .precision = plan.precisions.front(),
                                  .capacity_bytes = capacity.bytes,
                                  .capacity_blocks = capacity.blocks,
                                  .live = *live,
                                  .simulated = simulated.whole};
  PrintText(flags.json, LiveText(comparison));
  return WriteJson(flags.json, LiveJson(comparison));
}

}  // namespace pagoda::cli
