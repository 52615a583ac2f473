#include "client/cli/ablation_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/json_fields.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"

namespace pagoda::cli {
namespace {

constexpr char kBaseline[] = "raw16";
constexpr size_t kPositionColumnsMax = 8;

bool OfGrid(const std::string& name) { return absl::StrContains(name, " w"); }

double ChangePercent(double value, double exact) { return 100 * (value - exact) / exact; }

// Of the values above 0; 0 where there are none.
double Median(std::vector<double> values) {
  std::erase(values, 0.0);
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// The measures of one row, one for each text; empty when one is missing.
std::vector<AblationMeasure> MeasuresOf(const std::vector<AblationMeasure>& measures,
                                        const std::string& name,
                                        const std::vector<std::string>& texts) {
  std::vector<AblationMeasure> found;
  for (const std::string& text : texts) {
    const auto at = std::find_if(measures.begin(), measures.end(), [&](const auto& measure) {
      return measure.row == name && measure.text == text;
    });
    if (at == measures.end()) return {};
    found.push_back(*at);
  }
  return found;
}

AblationSummary Summarize(const AblationRun& run, const std::vector<AblationMeasure>& measures) {
  const auto count = static_cast<double>(measures.size());
  AblationSummary summary;
  summary.name = measures[0].row;
  summary.top1 = 0;
  double error_squares = 0;
  std::vector<double> ttft;
  std::vector<double> decode;
  for (const AblationMeasure& measure : measures) {
    summary.bytes_per_token += measure.bytes_per_token / count;
    summary.peak_bytes = std::max(summary.peak_bytes, measure.peak_bytes);
    summary.nll_delta_pct += ChangePercent(measure.nll, measure.exact_nll) / count;
    summary.ppl_delta_pct += 100 * std::expm1(measure.nll - measure.exact_nll) / count;
    error_squares += measure.nll_delta_se * measure.nll_delta_se;
    summary.kl_mean += measure.kl_mean / count;
    summary.kl_p99 += measure.kl_p99 / count;
    summary.top1 += measure.top1 / count;
    summary.hit_tokens = std::max(summary.hit_tokens, measure.hit_tokens);
    ttft.push_back(measure.ttft_ms);
    decode.push_back(measure.decode_tps);
  }
  summary.nll_delta_se = std::sqrt(error_squares) / count;
  summary.ratio = summary.bytes_per_token / run.raw16_bytes_per_token;
  summary.ttft_ms = Median(std::move(ttft));
  summary.decode_tps = Median(std::move(decode));
  return summary;
}

std::string OrDash(double value, const char* format) {
  return value == 0 ? "-" : absl::StrFormat(*absl::ParsedFormat<'f'>::New(format), value);
}

std::vector<std::string> Cells(const AblationSummary& row) {
  return {row.name,
          absl::StrFormat("%.0f", row.bytes_per_token),
          absl::StrFormat("%.3f", row.ratio),
          FormatBytes(static_cast<double>(row.peak_bytes)),
          absl::StrFormat("%+.3f +-%.3f", row.nll_delta_pct, row.nll_delta_se),
          absl::StrFormat("%+.3f", row.ppl_delta_pct),
          absl::StrFormat("%.3f", 1000 * row.kl_mean),
          absl::StrFormat("%.2f", 1000 * row.kl_p99),
          absl::StrFormat("%.2f %%", 100 * row.top1),
          OrDash(row.ttft_ms, "%.0f"),
          OrDash(row.decode_tps, "%.1f")};
}

// Scored positions of one row in one column, all texts.
struct PositionSums {
  double nll = 0;
  double exact_nll = 0;
  int64_t count = 0;
};
using PositionColumns = std::map<int64_t, PositionSums>;  // by the column's first position

PositionColumns ColumnsOf(const std::vector<AblationMeasure>& measures, const std::string& name,
                          int64_t column_tokens) {
  PositionColumns columns;
  for (const AblationMeasure& measure : measures) {
    if (measure.row != name) continue;
    for (const lab::PositionWindow& window : measure.windows) {
      PositionSums& sums = columns[window.begin / column_tokens * column_tokens];
      const auto count = static_cast<double>(window.end - window.begin);
      sums.nll += window.nll * count;
      sums.exact_nll += window.exact_nll * count;
      sums.count += window.end - window.begin;
    }
  }
  return columns;
}

int64_t ColumnTokens(const std::vector<AblationMeasure>& measures) {
  int64_t end = 0;
  for (const AblationMeasure& measure : measures) {
    if (!measure.windows.empty()) end = std::max(end, measure.windows.back().end);
  }
  int64_t tokens = lab::kPositionWindowTokens;
  while ((end + tokens - 1) / tokens > static_cast<int64_t>(kPositionColumnsMax)) tokens *= 2;
  return tokens;
}

Json MeasureJson(const AblationMeasure& measure) {
  Json windows = Json::array();
  for (const lab::PositionWindow& window : measure.windows) {
    windows.push_back({window.begin, window.end, window.nll, window.exact_nll});
  }
  return {{"row", measure.row},
          {"text", measure.text},
          {"text_digest", measure.text_digest},
          {"bytes_per_token", measure.bytes_per_token},
          {"peak_bytes", measure.peak_bytes},
          {"hit_tokens", measure.hit_tokens},
          {"ttft_ms", measure.ttft_ms},
          {"decode_tps", measure.decode_tps},
          {"nll", measure.nll},
          {"exact_nll", measure.exact_nll},
          {"nll_delta_se", measure.nll_delta_se},
          {"kl_mean", measure.kl_mean},
          {"kl_p99", measure.kl_p99},
          {"top1", measure.top1},
          {"windows", std::move(windows)}};
}

bool ReadWindow(const Json& list, lab::PositionWindow* window) {
  if (!list.is_array() || list.size() != 4) return false;
  if (!list[0].is_number_integer() || !list[1].is_number_integer()) return false;
  if (!list[2].is_number() || !list[3].is_number()) return false;
  window->begin = list[0].get<int64_t>();
  window->end = list[1].get<int64_t>();
  window->nll = list[2].get<double>();
  window->exact_nll = list[3].get<double>();
  return window->begin >= 0 && window->end > window->begin;
}

bool ReadMeasure(const Json& object, AblationMeasure* measure) {
  const bool read = object.is_object() && ReadField(object, "row", &measure->row) &&
                    ReadField(object, "text", &measure->text) &&
                    ReadField(object, "text_digest", &measure->text_digest) &&
                    ReadField(object, "bytes_per_token", &measure->bytes_per_token) &&
                    ReadField(object, "peak_bytes", &measure->peak_bytes) &&
                    ReadField(object, "hit_tokens", &measure->hit_tokens) &&
                    ReadField(object, "ttft_ms", &measure->ttft_ms) &&
                    ReadField(object, "decode_tps", &measure->decode_tps) &&
                    ReadField(object, "nll", &measure->nll) &&
                    ReadField(object, "exact_nll", &measure->exact_nll) &&
                    ReadField(object, "nll_delta_se", &measure->nll_delta_se) &&
                    ReadField(object, "kl_mean", &measure->kl_mean) &&
                    ReadField(object, "kl_p99", &measure->kl_p99) &&
                    ReadField(object, "top1", &measure->top1);
  if (!read || !object.contains("windows") || !object["windows"].is_array()) return false;
  return std::all_of(object["windows"].begin(), object["windows"].end(), [&](const Json& list) {
    return ReadWindow(list, &measure->windows.emplace_back());
  });
}

}  // namespace

AblationMeasure MakeAblationMeasure(std::string row, std::string text, std::string text_digest,
                                    const lab::ReadingResult& result) {
  const QualitySummary& quality = result.quality;
  // The change in percent is of the exact mean, which the summary does not hold.
  const double exact_nll = quality.mean_nll / (1 + quality.nll_delta_percent / 100);
  return {.row = std::move(row),
          .text = std::move(text),
          .text_digest = std::move(text_digest),
          .bytes_per_token = result.cost.bytes_per_token,
          .peak_bytes = result.cost.peak_bytes,
          .hit_tokens = result.cost.hit_tokens,
          .ttft_ms = 1e3 * result.cost.ttft_seconds,
          .decode_tps = result.cost.decode_tokens_per_second,
          .nll = quality.mean_nll,
          .exact_nll = exact_nll,
          .nll_delta_se = quality.nll_delta_standard_error_percent,
          .kl_mean = quality.mean_kl,
          .kl_p99 = quality.p99_kl,
          .top1 = quality.top1_agreement,
          .windows = result.windows};
}

std::vector<AblationSummary> SummarizeAblation(const AblationRun& run,
                                               const std::vector<AblationMeasure>& measures,
                                               const std::vector<std::string>& names,
                                               const std::vector<std::string>& texts) {
  std::vector<AblationSummary> rows;
  for (const std::string& name : names) {
    const std::vector<AblationMeasure> of_row = MeasuresOf(measures, name, texts);
    if (!of_row.empty()) rows.push_back(Summarize(run, of_row));
  }
  return rows;
}

std::string AblationTable(const std::vector<AblationSummary>& rows) {
  TextTable table({{"row", Align::kLeft},
                   {"bytes/token", Align::kRight},
                   {"ratio", Align::kRight},
                   {"peak", Align::kRight},
                   {"NLL %", Align::kRight},
                   {"PPL %", Align::kRight},
                   {"KL e-3", Align::kRight},
                   {"p99 e-3", Align::kRight},
                   {"top-1", Align::kRight},
                   {"TTFT ms", Align::kRight},
                   {"tokens/s", Align::kRight}});
  for (const AblationSummary& row : rows) table.AddRow(Cells(row));
  return table.empty() ? "" : table.Render();
}

std::string PositionTable(const std::vector<AblationMeasure>& measures,
                          const std::vector<AblationSummary>& rows) {
  const int64_t column_tokens = ColumnTokens(measures);
  const PositionColumns baseline = ColumnsOf(measures, kBaseline, column_tokens);
  if (baseline.empty()) return "";
  std::vector<Column> titles = {{"positions from", Align::kLeft}};
  for (const auto& [begin, sums] : baseline) titles.push_back({absl::StrCat(begin), Align::kRight});
  TextTable table(std::move(titles));
  for (const AblationSummary& row : rows) {
    if (OfGrid(row.name)) continue;
    const bool is_baseline = row.name == kBaseline;
    const PositionColumns columns = ColumnsOf(measures, row.name, column_tokens);
    std::vector<std::string> cells = {absl::StrCat(row.name, is_baseline ? ", PPL" : ", NLL %")};
    for (const auto& [begin, unused] : baseline) {
      const auto found = columns.find(begin);
      if (found == columns.end()) {
        cells.push_back("-");
        continue;
      }
      const PositionSums& sums = found->second;
      cells.push_back(
          is_baseline
              ? absl::StrFormat("%.2f", std::exp(sums.nll / static_cast<double>(sums.count)))
              : absl::StrFormat("%+.3f", ChangePercent(sums.nll, sums.exact_nll)));
    }
    table.AddRow(std::move(cells));
  }
  return table.Render();
}

std::vector<QualityPoint> AblationPoints(const std::vector<AblationSummary>& rows,
                                         int64_t window_tokens) {
  std::vector<QualityPoint> points;
  const auto add = [&](std::string label, std::string series, const AblationSummary& row) {
    points.push_back({.label = std::move(label),
                      .series = std::move(series),
                      .bytes_per_token = row.bytes_per_token,
                      .kl = row.kl_mean});
  };
  for (const AblationSummary& row : rows) {
    const size_t grid = row.name.find(" w");
    add(row.name, grid == std::string::npos ? "" : row.name.substr(0, grid), row);
    if (row.name != "q8" && row.name != "q4") continue;
    add(absl::StrCat(row.name, " w", window_tokens), row.name, row);
  }
  return points;
}

Json AblationJson(const AblationRun& run, const std::vector<AblationMeasure>& measures,
                  const std::vector<AblationSummary>& rows) {
  Json list = Json::array();
  for (const AblationSummary& row : rows) {
    list.push_back({{"name", row.name},
                    {"bytes_per_token", row.bytes_per_token},
                    {"ratio", row.ratio},
                    {"peak_bytes", row.peak_bytes},
                    {"nll_delta_pct", row.nll_delta_pct},
                    {"nll_delta_se", row.nll_delta_se},
                    {"ppl_delta_pct", row.ppl_delta_pct},
                    {"kl_mean", row.kl_mean},
                    {"kl_p99", row.kl_p99},
                    {"top1", row.top1},
                    {"ttft_ms", row.ttft_ms},
                    {"decode_tps", row.decode_tps},
                    {"hit_tokens", row.hit_tokens}});
  }
  Json measured = Json::array();
  for (const AblationMeasure& measure : measures) measured.push_back(MeasureJson(measure));
  return {{"model", run.model},
          {"settings", run.settings},
          {"raw16_bytes_per_token", run.raw16_bytes_per_token},
          {"rows", std::move(list)},
          {"measured", std::move(measured)}};
}

absl::StatusOr<std::vector<AblationMeasure>> AblationMeasuresOf(const std::string& json,
                                                                const AblationRun& run) {
  const Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  std::vector<AblationMeasure> measures;
  AblationRun found;
  bool valid = object.is_object() && ReadField(object, "model", &found.model) &&
               ReadField(object, "settings", &found.settings) &&
               ReadField(object, "raw16_bytes_per_token", &found.raw16_bytes_per_token) &&
               object.contains("measured") && object["measured"].is_array();
  if (valid) {
    for (const Json& entry : object["measured"]) {
      valid = valid && ReadMeasure(entry, &measures.emplace_back());
    }
  }
  if (!valid) return absl::DataLossError("not the JSON of eval ablate; leave out --resume");
  if (found == run) return measures;
  return absl::FailedPreconditionError(absl::StrFormat(
      "its rows are of model %.12s, %s; this run is of model %.12s, %s; leave out --resume or name "
      "another file",
      found.model, found.settings, run.model, run.settings));
}

}  // namespace pagoda::cli
