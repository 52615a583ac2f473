// `pagoda replay --live`: one policy at one capacity, through a real daemon and simulated.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/cli/replay_plan.h"

namespace pagoda::cli {

// What cannot be combined with --live; empty: nothing.
std::string CheckReplayLive(const ReplayFlags& flags);
absl::Status RunReplayLive(const ReplayFlags& flags);

}  // namespace pagoda::cli
