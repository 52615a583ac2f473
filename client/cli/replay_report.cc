#include "client/cli/replay_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"

namespace pagoda::cli {
namespace {

std::string Ratio(double ratio) { return absl::StrFormat("%.4f", ratio); }

Json CountsJson(const replay::ReplayCounts& counts) {
  return {{"requests", counts.requests},
          {"blocks", counts.blocks},
          {"block_hits", counts.block_hits},
          {"prefix_hits", counts.prefix_hits},
          {"token_hit_ratio", counts.token_hit_ratio()}};
}

// The place of `name` among the names seen so far; a new one is the last.
int IndexOf(std::vector<std::string>& names, const std::string& name) {
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<int>(it - names.begin());
  names.push_back(name);
  return static_cast<int>(names.size()) - 1;
}

}  // namespace

std::string ReplayTable(absl::Span<const ReplayRow> rows) {
  TextTable table({{"trace"},
                   {"policy"},
                   {"share", Align::kRight},
                   {"blocks", Align::kRight},
                   {"bytes", Align::kRight},
                   {"precision"},
                   {"block hits", Align::kRight},
                   {"prefix hits", Align::kRight},
                   {"tokens hit", Align::kRight},
                   {"1st half", Align::kRight},
                   {"2nd half", Align::kRight}});
  for (const ReplayRow& row : rows) {
    table.AddRow(
        {row.trace, row.policy, absl::StrFormat("%.4g", row.share),
         FormatCount(row.capacity_blocks), FormatBytes(static_cast<double>(row.bytes)),
         std::string(PrecisionName(row.precision)), Ratio(row.result.whole.block_hit_ratio()),
         Ratio(row.result.whole.prefix_hit_ratio()), Ratio(row.result.whole.token_hit_ratio()),
         Ratio(row.result.first_half.token_hit_ratio()),
         Ratio(row.result.second_half.token_hit_ratio())});
  }
  return table.Render();
}

Json ReplayRowsJson(absl::Span<const ReplayRow> rows) {
  Json json = Json::array();
  for (const ReplayRow& row : rows) {
    Json entry = {{"trace", row.trace}, {"policy", row.policy},
                  {"share", row.share}, {"capacity_blocks", row.capacity_blocks},
                  {"bytes", row.bytes}, {"precision", std::string(PrecisionName(row.precision))}};
    entry.update(CountsJson(row.result.whole));
    entry["first_half"] = CountsJson(row.result.first_half);
    entry["second_half"] = CountsJson(row.result.second_half);
    json.push_back(std::move(entry));
  }
  return json;
}

std::vector<PlotPanel> ReplayPanels(absl::Span<const ReplayRow> rows) {
  std::vector<std::string> traces;
  std::vector<std::string> policies;
  std::vector<std::string> precisions;
  std::vector<PlotPanel> panels;
  for (const ReplayRow& row : rows) IndexOf(precisions, std::string(PrecisionName(row.precision)));
  const bool one_precision = precisions.size() == 1;
  for (const ReplayRow& row : rows) {
    const std::string precision(PrecisionName(row.precision));
    const auto panel_index = static_cast<size_t>(IndexOf(traces, row.trace));
    if (panel_index == panels.size()) panels.push_back({row.trace, {}});
    std::vector<PlotLine>& lines = panels[panel_index].lines;
    const std::string label =
        one_precision ? row.policy : absl::StrCat(row.policy, ", ", precision);
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const PlotLine& other) { return other.label == label; });
    if (line == lines.end()) {
      lines.push_back({label, IndexOf(policies, row.policy), IndexOf(precisions, precision), {}});
      line = std::prev(lines.end());
    }
    line->points.push_back({static_cast<double>(row.bytes), row.result.whole.token_hit_ratio()});
  }
  return panels;
}

}  // namespace pagoda::cli
