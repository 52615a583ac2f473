// What the demo found, as rows, claims and JSON; and whether it is a success.
//
// Threads  pure functions
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/cli/json_output.h"
#include "client/cli/text_table.h"

namespace pagoda::cli {

struct DemoRun {
  std::string name;  // cold, warm, warm_other, restart, q8, q4
  std::string tenant;
  int64_t prompt_tokens = 0;
  int64_t hit_tokens = 0;
  std::string hit_tier = "none";
  double ttft_seconds = 0;
  double decode_tokens_per_second = 0;
  double kv_bytes_per_token = 0;     // of the whole sequence at its end
  double raw16_bytes_per_token = 0;  // what raw16 takes
  double token_agreement = 0;        // with the same request without a cache, in raw16
};

struct DemoReport {
  std::vector<DemoRun> runs;
  double kv_ratio_q8 = 0;  // encoded pages over the same tokens in raw16; 0: none were seen
  double kv_ratio_q4 = 0;
};

// The share of positions with the same token; positions that only one answer has count as
// different. Two empty answers agree.
double TokenAgreement(absl::Span<const uint32_t> answer, absl::Span<const uint32_t> reference);

// Time to first token of `cold` over that of the run; 0 when one of them is missing.
double TtftRatio(const DemoReport& report, absl::string_view run);

TextTable DemoTable();
std::vector<std::string> DemoRow(const DemoRun& run);

// One line per claim, with the figures behind it.
std::string DemoClaims(const DemoReport& report);

Json DemoJson(const DemoReport& report);

// INTERNAL names everything that must not be: a run that found nothing, an answer in raw16 that is
// not the one without a cache, pages that were never encoded.
absl::Status CheckDemo(const DemoReport& report);

}  // namespace pagoda::cli
