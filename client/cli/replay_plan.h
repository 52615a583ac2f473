// What `pagoda replay` was asked for, understood: flags, the plan that they make, and the trace.
//
// Threads  pure functions, but for files read
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/connection.h"
#include "client/cli/json_output.h"
#include "kernels/page_layout.h"
#include "storage/base/precision.h"
#include "storage/replay/trace_file.h"

namespace pagoda::cli {

struct ReplayFlags {
  JsonOptions json;
  std::string plot;
  std::vector<std::string> traces;
  std::vector<std::string> policies = {"lru"};
  std::vector<double> shares = {0.01, 0.02, 0.05, 0.1, 0.25, 0.5};
  std::vector<std::string> bytes;
  std::vector<std::string> raw16_tokens;
  std::string model = "llama-3-8b";
  int32_t page_tokens = 64;
  std::vector<std::string> precisions = {"raw16"};
  int64_t requests = INT64_MAX;
  int64_t conversations = INT64_MAX;
  CLI::Option* share_flag = nullptr;
  bool live = false;
  double speed = 0;
  ConnectionOptions connection;
  CLI::Option* daemon_flag = nullptr;

  bool own_daemon() const { return daemon_flag->count() == 0; }
};

// What is replayed, once flags are understood.
struct ReplayPlan {
  std::string model;
  std::vector<std::string> policies;
  std::vector<double> shares;  // empty: budgets
  std::vector<int64_t> budget_bytes;
  kernels::PageShape shape;
  std::vector<Precision> precisions;
  replay::AgenticOptions agentic;
};

// INVALID_ARGUMENT says which flag is wrong.
absl::StatusOr<ReplayPlan> MakePlan(const ReplayFlags& flags);

// The trace of a path, cut as the flags say.
absl::StatusOr<replay::Trace> ReadPlannedTrace(const std::string& path, const ReplayFlags& flags,
                                               const ReplayPlan& plan);

}  // namespace pagoda::cli
