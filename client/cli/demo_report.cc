#include "client/cli/demo_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/units.h"

namespace pagoda::cli {
namespace {

constexpr const char* kRunNames[] = {"cold", "warm", "warm_other", "restart", "q8", "q4"};

const DemoRun* FindRun(const DemoReport& report, absl::string_view name) {
  const auto found = std::find_if(report.runs.begin(), report.runs.end(),
                                  [name](const DemoRun& run) { return name == run.name; });
  return found == report.runs.end() ? nullptr : &*found;
}

bool IsRaw16(const DemoRun& run) { return run.name != "q8" && run.name != "q4"; }

std::string TtftClaim(const DemoReport& report, absl::string_view name, absl::string_view what) {
  const DemoRun* const cold = FindRun(report, "cold");
  const DemoRun* const run = FindRun(report, name);
  if (cold == nullptr || run == nullptr) return "";
  return absl::StrFormat("time to first token  %5.1f x lower %s (%s, cold %s)\n",
                         TtftRatio(report, name), what, FormatSeconds(run->ttft_seconds),
                         FormatSeconds(cold->ttft_seconds));
}

std::string MemoryClaim(double ratio, absl::string_view precision) {
  if (ratio == 0) return "";
  return absl::StrFormat(
      "memory               %5.3f of raw16 at %s (pages, headers and padding "
      "counted)\n",
      ratio, precision);
}

}  // namespace

double TokenAgreement(absl::Span<const uint32_t> answer, absl::Span<const uint32_t> reference) {
  const size_t longer = std::max(answer.size(), reference.size());
  if (longer == 0) return 1;
  const size_t shorter = std::min(answer.size(), reference.size());
  size_t equal = 0;
  for (size_t i = 0; i < shorter; ++i) equal += answer[i] == reference[i] ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(longer);
}

double TtftRatio(const DemoReport& report, absl::string_view run) {
  const DemoRun* const cold = FindRun(report, "cold");
  const DemoRun* const other = FindRun(report, run);
  if (cold == nullptr || other == nullptr || other->ttft_seconds <= 0) return 0;
  return cold->ttft_seconds / other->ttft_seconds;
}

TextTable DemoTable() {
  return TextTable({{"run", Align::kLeft, 10},
                    {"tenant", Align::kLeft, 7},
                    {"prompt", Align::kRight, 6},
                    {"hit", Align::kRight, 6},
                    {"tier", Align::kLeft, 4},
                    {"first token", Align::kRight, 11},
                    {"tokens/s", Align::kRight, 8},
                    {"KV B/token", Align::kRight, 10},
                    {"of raw16", Align::kRight, 8},
                    {"agreement", Align::kRight, 9}});
}

std::vector<std::string> DemoRow(const DemoRun& run) {
  const double share =
      run.raw16_bytes_per_token > 0 ? run.kv_bytes_per_token / run.raw16_bytes_per_token : 0;
  return {run.name,
          run.tenant,
          FormatCount(run.prompt_tokens),
          FormatCount(run.hit_tokens),
          run.hit_tier == "none" ? "-" : run.hit_tier,
          FormatSeconds(run.ttft_seconds),
          absl::StrFormat("%.1f", run.decode_tokens_per_second),
          FormatCount(static_cast<int64_t>(run.kv_bytes_per_token + 0.5)),
          absl::StrFormat("%.3f", share),
          absl::StrFormat("%.1f %%", run.token_agreement * 100)};
}

std::string DemoClaims(const DemoReport& report) {
  std::string text = absl::StrCat(
      TtftClaim(report, "warm", "warm"), TtftClaim(report, "restart", "after a restart, from SSD"),
      MemoryClaim(report.kv_ratio_q8, "q8"), MemoryClaim(report.kv_ratio_q4, "q4"));
  double raw16 = 1;
  std::vector<std::string> lossy;
  for (const DemoRun& run : report.runs) {
    if (IsRaw16(run)) {
      raw16 = std::min(raw16, run.token_agreement);
    } else {
      lossy.push_back(absl::StrFormat("%s %.1f %%", run.name, run.token_agreement * 100));
    }
  }
  absl::StrAppendFormat(&text,
                        "agreement            %s of the tokens of the same request without a cache "
                        "in raw16 from any tier",
                        raw16 == 1 ? "100 %" : absl::StrFormat("%.1f %%", raw16 * 100));
  if (!lossy.empty()) absl::StrAppend(&text, "; ", absl::StrJoin(lossy, ", "));
  return text + "\n";
}

Json DemoJson(const DemoReport& report) {
  Json runs = Json::array();
  for (const DemoRun& run : report.runs) {
    runs.push_back({{"name", run.name},
                    {"prompt_tokens", run.prompt_tokens},
                    {"hit_tokens", run.hit_tokens},
                    {"hit_tier", run.hit_tier},
                    {"ttft_ms", run.ttft_seconds * 1e3},
                    {"decode_tps", run.decode_tokens_per_second},
                    {"kv_bytes_per_token", run.kv_bytes_per_token},
                    {"token_agreement", run.token_agreement}});
  }
  return {{"runs", std::move(runs)},
          {"ttft_ratio_warm", TtftRatio(report, "warm")},
          {"ttft_ratio_ssd", TtftRatio(report, "restart")},
          {"kv_ratio_q8", report.kv_ratio_q8},
          {"kv_ratio_q4", report.kv_ratio_q4}};
}

absl::Status CheckDemo(const DemoReport& report) {
  std::vector<std::string> wrong;
  for (const char* name : kRunNames) {
    const DemoRun* const run = FindRun(report, name);
    if (run == nullptr) {
      wrong.push_back(absl::StrCat(name, " did not run"));
      continue;
    }
    if (run->name == "cold" ? run->hit_tokens > 0 : run->hit_tokens == 0) {
      wrong.push_back(absl::StrCat(name, " found ", run->hit_tokens, " tokens"));
    }
    if (IsRaw16(*run) && run->token_agreement < 1) {
      wrong.push_back(absl::StrCat(name, " does not answer as without a cache"));
    }
  }
  const DemoRun* const restart = FindRun(report, "restart");
  if (restart != nullptr && restart->hit_tokens > 0 && restart->hit_tier != "ssd") {
    wrong.push_back(absl::StrCat("restart was served from ", restart->hit_tier));
  }
  if (report.kv_ratio_q8 == 0) wrong.push_back("no page was encoded to q8");
  if (report.kv_ratio_q4 == 0) wrong.push_back("no page was encoded to q4");
  if (wrong.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the demo failed: ", absl::StrJoin(wrong, "; ")));
}

}  // namespace pagoda::cli
