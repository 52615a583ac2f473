// What `pagoda replay --live` found, beside what the simulation says: text and JSON.
//
// Threads  pure functions
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/json_output.h"
#include "client/cli/live_replay.h"
#include "storage/base/precision.h"
#include "storage/replay/replay.h"

namespace pagoda::cli {

struct LiveComparison {
  std::string trace;
  std::string daemon;  // its address, or "in-process"
  std::string policy;  // of the simulation; of the daemon too, if it is ours
  Precision precision = Precision::kRaw16;
  int64_t capacity_bytes = 0;
  int64_t capacity_blocks = 0;
  LiveResult live;
  replay::ReplayCounts simulated;
};

std::string LiveText(const LiveComparison& comparison);
Json LiveJson(const LiveComparison& comparison);

}  // namespace pagoda::cli
