// What `pagoda replay` found: table, JSON and picture of the same rows.
//
// Threads    pure functions
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/cli/hit_rate_plot.h"
#include "client/cli/json_output.h"
#include "storage/base/precision.h"
#include "storage/replay/replay.h"

namespace pagoda::cli {

struct ReplayRow {
  std::string trace;
  std::string policy;
  double share = 0;  // of the trace's different blocks
  int64_t capacity_blocks = 0;
  int64_t bytes = 0;
  Precision precision = Precision::kRaw16;
  replay::ReplayResult result;
};

std::string ReplayTable(absl::Span<const ReplayRow> rows);
Json ReplayRowsJson(absl::Span<const ReplayRow> rows);
// One panel a trace; lines in the order in which they first appear.
std::vector<PlotPanel> ReplayPanels(absl::Span<const ReplayRow> rows);

}  // namespace pagoda::cli
