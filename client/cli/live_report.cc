#include "client/cli/live_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"

namespace pagoda::cli {
namespace {

double LiveRatio(const LiveResult& live) {
  return live.blocks == 0 ? 0
                          : static_cast<double>(live.block_hits) / static_cast<double>(live.blocks);
}

}  // namespace

std::string LiveText(const LiveComparison& comparison) {
  const LiveResult& live = comparison.live;
  std::string text = absl::StrFormat("%s: %d requests, %d blocks, a %s page each, through %s\n\n",
                                     comparison.trace, live.requests, live.blocks,
                                     PrecisionName(comparison.precision), comparison.daemon);
  absl::StrAppendFormat(&text, "prefix hits, live       %.4f\n", LiveRatio(live));
  absl::StrAppendFormat(&text, "prefix hits, simulated  %.4f  (%s, %d blocks, %s)\n",
                        comparison.simulated.prefix_hit_ratio(), comparison.policy,
                        comparison.capacity_blocks,
                        FormatBytes(static_cast<double>(comparison.capacity_bytes)));
  absl::StrAppendFormat(&text, "pages fetched           %d, %s, each verified\n",
                        live.fetched_pages, FormatBytes(static_cast<double>(live.fetched_bytes)));
  absl::StrAppendFormat(&text, "pages refused           %d; fetches cut short %d\n",
                        live.push_failures, live.fetch_failures);
  absl::StrAppendFormat(&text, "time                    %s", FormatSeconds(live.seconds));
  if (live.late_seconds_max > 0) {
    absl::StrAppendFormat(&text, ", requests late by %s at most",
                          FormatSeconds(live.late_seconds_max));
  }
  return absl::StrCat(text, "\n", live.path_lines);
}

Json LiveJson(const LiveComparison& comparison) {
  const LiveResult& live = comparison.live;
  return {{"trace", comparison.trace},
          {"daemon", comparison.daemon},
          {"policy", comparison.policy},
          {"precision", std::string(PrecisionName(comparison.precision))},
          {"capacity_blocks", comparison.capacity_blocks},
          {"bytes", comparison.capacity_bytes},
          {"requests", live.requests},
          {"blocks", live.blocks},
          {"prefix_hits", live.block_hits},
          {"simulated_prefix_hits", comparison.simulated.prefix_hits},
          {"fetched_pages", live.fetched_pages},
          {"fetched_bytes", live.fetched_bytes},
          {"fetch_failures", live.fetch_failures},
          {"push_failures", live.push_failures},
          {"seconds", live.seconds},
          {"late_seconds_max", live.late_seconds_max}};
}

}  // namespace pagoda::cli
