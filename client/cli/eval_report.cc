#include "client/cli/eval_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/units.h"
#include "storage/base/check.h"

namespace pagoda::cli {
namespace {

const PerplexityRow& RowOf(const EvalText& text, Precision precision) {
  const auto found =
      std::find_if(text.report.rows.begin(), text.report.rows.end(),
                   [precision](const PerplexityRow& row) { return row.precision == precision; });
  PAGODA_CHECK(found != text.report.rows.end());
  return *found;
}

std::string Delta(const PerplexityRow& row) {
  return absl::StrFormat("%+.3f %% (+-%.3f)", row.nll_delta_percent,
                         row.nll_delta_standard_error_percent);
}

std::string MeanKl(const PerplexityRow& row) { return absl::StrFormat("%.2e", row.mean_kl); }

}  // namespace

TextTable EvalTable() {
  return TextTable({{"text", Align::kLeft, 8},
                    {"tokens", Align::kRight, 6},
                    {"NLL raw16", Align::kRight, 9},
                    {"q8 NLL", Align::kRight, 19},
                    {"q8 KL", Align::kRight, 8},
                    {"q8 top-1", Align::kRight, 8},
                    {"q4 NLL", Align::kRight, 19},
                    {"q4 KL", Align::kRight, 8},
                    {"q4 top-1", Align::kRight, 8}});
}

std::vector<std::string> EvalRow(const EvalText& text) {
  const PerplexityRow& q8 = RowOf(text, Precision::kQ8);
  const PerplexityRow& q4 = RowOf(text, Precision::kQ4);
  return {text.name,
          FormatCount(text.report.token_count + 1),
          absl::StrFormat("%.4f", RowOf(text, Precision::kRaw16).mean_nll),
          Delta(q8),
          MeanKl(q8),
          FormatPercent(q8.top1_agreement),
          Delta(q4),
          MeanKl(q4),
          FormatPercent(q4.top1_agreement)};
}

Json EvalJson(const std::vector<EvalText>& texts) {
  Json list = Json::array();
  for (const EvalText& text : texts) {
    const PerplexityRow& q8 = RowOf(text, Precision::kQ8);
    const PerplexityRow& q4 = RowOf(text, Precision::kQ4);
    list.push_back({{"name", text.name},
                    {"tokens", text.report.token_count + 1},
                    {"nll_raw16", RowOf(text, Precision::kRaw16).mean_nll},
                    {"q8_delta_pct", q8.nll_delta_percent},
                    {"q4_delta_pct", q4.nll_delta_percent},
                    {"q8_mean_kl", q8.mean_kl},
                    {"q4_mean_kl", q4.mean_kl},
                    {"q8_delta_se_pct", q8.nll_delta_standard_error_percent},
                    {"q4_delta_se_pct", q4.nll_delta_standard_error_percent},
                    {"q8_top1", q8.top1_agreement},
                    {"q4_top1", q4.top1_agreement}});
  }
  return {{"texts", std::move(list)}};
}

}  // namespace pagoda::cli
