#include "client/cli/codec_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/json_fields.h"
#include "client/cli/units.h"

namespace pagoda::cli {
namespace {

constexpr char kYardstick[] = "q4_0+H";

std::string Bits(double bits) { return absl::StrFormat("%.3f", bits); }
std::string Change(double percent, double standard_error) {
  return absl::StrFormat("%+.3f +-%.3f", percent, standard_error);
}
std::string Kl(double kl) { return absl::StrFormat("%.3f", 1000 * kl); }

const CodecRow* Find(const std::vector<CodecRow>& rows, const std::string& codec,
                     const std::string& text) {
  for (const CodecRow& row : rows) {
    if (row.codec == codec && row.text == text) return &row;
  }
  return nullptr;
}

// The rows of one codec, one for each text; empty when one is missing.
std::vector<CodecRow> RowsOf(const std::vector<CodecRow>& rows, const std::string& codec,
                             const std::vector<std::string>& texts) {
  std::vector<CodecRow> found;
  for (const std::string& text : texts) {
    const CodecRow* const row = Find(rows, codec, text);
    if (row == nullptr) return {};
    found.push_back(*row);
  }
  return found;
}

// Means over the texts, the greatest KL, and the texts' independent errors together.
struct Means {
  double nll = 0;
  double nll_se = 0;
  double kl = 0;
  double kl_max = 0;
  double p99 = 0;
  double top1 = 0;
};
Means MeansOf(const std::vector<CodecRow>& rows) {
  const auto count = static_cast<double>(rows.size());
  Means means;
  double error_squares = 0;
  for (const CodecRow& row : rows) {
    means.nll += row.nll_delta_pct / count;
    error_squares += row.nll_delta_se * row.nll_delta_se;
    means.kl += row.kl_mean / count;
    means.kl_max = std::max(means.kl_max, row.kl_mean);
    means.p99 += row.kl_p99 / count;
    means.top1 += row.top1 / count;
  }
  means.nll_se = std::sqrt(error_squares) / count;
  return means;
}

std::vector<std::string> SummaryCells(const std::vector<CodecRow>& codec,
                                      const std::vector<CodecRow>& rows) {
  const Means means = MeansOf(codec);
  std::vector<std::string> cells = {
      codec[0].codec,
      Bits(codec[0].k_bits),
      Bits(codec[0].v_bits),
      Bits((codec[0].k_bits + codec[0].v_bits) / 2),
      Change(means.nll, means.nll_se),
      Kl(means.kl),
      Kl(means.kl_max),
      Kl(means.p99),
      absl::StrFormat("%.2f %%", 100 * means.top1),
  };
  for (const CodecRow& row : codec) {
    const CodecRow* const yardstick = Find(rows, kYardstick, row.text);
    cells.push_back(
        yardstick == nullptr ? "-" : absl::StrFormat("%.3f", row.kl_mean / yardstick->kl_mean));
  }
  return cells;
}

bool ReadRow(const Json& object, CodecRow* row) {
  return object.is_object() && ReadField(object, "codec", &row->codec) &&
         ReadField(object, "k_bits", &row->k_bits) && ReadField(object, "v_bits", &row->v_bits) &&
         ReadField(object, "text", &row->text) &&
         ReadField(object, "nll_delta_pct", &row->nll_delta_pct) &&
         ReadField(object, "nll_delta_se", &row->nll_delta_se) &&
         ReadField(object, "kl_mean", &row->kl_mean) && ReadField(object, "kl_p99", &row->kl_p99) &&
         ReadField(object, "top1", &row->top1);
}

}  // namespace

CodecRow MakeCodecRow(std::string codec, double k_bits, double v_bits, std::string text,
                      const QualitySummary& quality) {
  return {.codec = std::move(codec),
          .k_bits = k_bits,
          .v_bits = v_bits,
          .text = std::move(text),
          .nll_delta_pct = quality.nll_delta_percent,
          .nll_delta_se = quality.nll_delta_standard_error_percent,
          .kl_mean = quality.mean_kl,
          .kl_p99 = quality.p99_kl,
          .top1 = quality.top1_agreement};
}

TextTable CodecLines() {
  return TextTable({{"codec", Align::kLeft, 7},
                    {"text", Align::kLeft, 8},
                    {"K bits", Align::kRight, 6},
                    {"V bits", Align::kRight, 6},
                    {"NLL %", Align::kRight, 15},
                    {"KL e-3", Align::kRight, 7},
                    {"p99 e-3", Align::kRight, 7},
                    {"top-1", Align::kRight, 8}});
}

std::vector<std::string> CodecLine(const CodecRow& row) {
  return {row.codec,
          row.text,
          Bits(row.k_bits),
          Bits(row.v_bits),
          Change(row.nll_delta_pct, row.nll_delta_se),
          Kl(row.kl_mean),
          Kl(row.kl_p99),
          absl::StrFormat("%.2f %%", 100 * row.top1)};
}

std::string CodecSummary(const std::vector<CodecRow>& rows, const std::vector<std::string>& texts) {
  std::vector<Column> columns = {
      {"codec", Align::kLeft},  {"K bits", Align::kRight},  {"V bits", Align::kRight},
      {"bits", Align::kRight},  {"NLL %", Align::kRight},   {"KL e-3", Align::kRight},
      {"worst", Align::kRight}, {"p99 e-3", Align::kRight}, {"top-1", Align::kRight}};
  for (const std::string& text : texts) {
    columns.push_back({absl::StrCat("of ", kYardstick, ", ", text), Align::kRight});
  }
  TextTable table(columns);
  std::vector<std::string> done;
  for (const CodecRow& row : rows) {
    if (std::find(done.begin(), done.end(), row.codec) != done.end()) continue;
    done.push_back(row.codec);
    const std::vector<CodecRow> codec = RowsOf(rows, row.codec, texts);
    if (!codec.empty()) table.AddRow(SummaryCells(codec, rows));
  }
  return table.empty() ? "" : table.Render();
}

Json CodecJson(const CodecRun& run, const std::vector<CodecRow>& rows) {
  Json list = Json::array();
  for (const CodecRow& row : rows) {
    list.push_back({{"codec", row.codec},
                    {"k_bits", row.k_bits},
                    {"v_bits", row.v_bits},
                    {"text", row.text},
                    {"nll_delta_pct", row.nll_delta_pct},
                    {"nll_delta_se", row.nll_delta_se},
                    {"kl_mean", row.kl_mean},
                    {"kl_p99", row.kl_p99},
                    {"top1", row.top1}});
  }
  return {{"model", run.model},
          {"tokens", run.token_count},
          {"window", run.window_tokens},
          {"rows", std::move(list)}};
}

absl::StatusOr<std::vector<CodecRow>> CodecRowsOf(const std::string& json, const CodecRun& run) {
  const Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  std::vector<CodecRow> rows;
  CodecRun found;
  bool valid = object.is_object() && ReadField(object, "model", &found.model) &&
               ReadField(object, "tokens", &found.token_count) &&
               ReadField(object, "window", &found.window_tokens) && object.contains("rows") &&
               object["rows"].is_array();
  if (valid) {
    for (const Json& entry : object["rows"]) valid = valid && ReadRow(entry, &rows.emplace_back());
  }
  if (!valid) return absl::DataLossError("not the JSON of eval codecs; leave out --resume");
  if (found == run) return rows;
  return absl::FailedPreconditionError(absl::StrFormat(
      "its rows are of model %.12s, %d tokens and window %d, this run is of model %.12s, %d tokens "
      "and window %d; leave out --resume or name another file",
      found.model, found.token_count, found.window_tokens, run.model, run.token_count,
      run.window_tokens));
}

}  // namespace pagoda::cli
