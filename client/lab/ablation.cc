#include "client/lab/ablation.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace pagoda::lab {
namespace {

AblationRow Row(std::string name, Precision precision, int64_t window_tokens) {
  return {.name = std::move(name), .kv = {.precision = precision, .window_tokens = window_tokens}};
}

}  // namespace

std::vector<AblationRow> AblationRows(const AblationPlan& plan) {
  const int64_t window = plan.window_tokens;
  const bool has_ladder = plan.q8_tokens > window;
  std::vector<AblationRow> rows;
  for (const Precision precision : kStoredPrecisions) {
    rows.push_back(Row(std::string(PrecisionName(precision)), precision, window));
  }
  if (has_ladder) {
    rows.push_back(Row("ladder", Precision::kQ4, window));
    rows.back().kv.q8_tokens = plan.q8_tokens;
  }
  if (!plan.k_lo_layers.empty()) {
    rows.push_back(Row("profile", Precision::kQ4, window));
    rows.back().kv.k_lo_layers = plan.k_lo_layers;
  }
  if (has_ladder) rows.push_back(Row("composite", Precision::kQ2, plan.q8_tokens));
  if (plan.shared_prefix) {
    rows.push_back(Row("shared", Precision::kQ4, window));
    rows.back().shared_prefix = true;
  }
  if (int{has_ladder} + int{!plan.k_lo_layers.empty()} + int{plan.shared_prefix} >= 2) {
    rows.push_back(Row("all", Precision::kQ4, window));
    rows.back().kv.k_lo_layers = plan.k_lo_layers;
    rows.back().kv.q8_tokens = has_ladder ? plan.q8_tokens : 0;
    rows.back().shared_prefix = plan.shared_prefix;
  }
  const std::set<int64_t> grid_windows(plan.grid_windows.begin(), plan.grid_windows.end());
  for (const Precision precision : {Precision::kQ8, Precision::kQ4}) {
    for (const int64_t grid_window : grid_windows) {
      if (grid_window == window) continue;
      rows.push_back(
          Row(absl::StrCat(PrecisionName(precision), " w", grid_window), precision, grid_window));
    }
  }
  return rows;
}

}  // namespace pagoda::lab
