// What `pagoda eval ablate` found: each row over each text, from which an interrupted run goes on,
// and out of them one line a row for people and JSON.
//
// Means      over the texts: bytes, NLL, KL, p99, top-1; the greatest peak; the median of the times
//            that were measured
// Ratio      bytes per token over those of raw16 without headers and padding
// Units      NLL and PPL changes in percent, KL in nats (tables: thousandths), milliseconds
// Threads    pure functions
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/json_output.h"
#include "client/cli/quality_plot.h"
#include "client/lab/quality_run.h"

namespace pagoda::cli {

// One row over one text.
struct AblationMeasure {
  std::string row;
  std::string text;
  std::string text_digest;  // of its tokens: a file may have changed
  double bytes_per_token = 0;
  int64_t peak_bytes = 0;
  int64_t hit_tokens = 0;
  double ttft_ms = 0;     // 0: not measured
  double decode_tps = 0;  // 0: not measured
  double nll = 0;
  double exact_nll = 0;
  double nll_delta_se = 0;  // percent of exact_nll
  double kl_mean = 0;
  double kl_p99 = 0;
  double top1 = 1;
  std::vector<lab::PositionWindow> windows;
};
AblationMeasure MakeAblationMeasure(std::string row, std::string text, std::string text_digest,
                                    const lab::ReadingResult& result);

// What measures must share to stand in one table.
struct AblationRun {
  std::string model;     // identity, hex
  std::string settings;  // "4096 tokens, window 128, ..."
  double raw16_bytes_per_token = 0;
  bool operator==(const AblationRun&) const = default;
};

struct AblationSummary {
  std::string name;
  double bytes_per_token = 0;
  double ratio = 0;
  int64_t peak_bytes = 0;
  double nll_delta_pct = 0;
  double nll_delta_se = 0;
  double ppl_delta_pct = 0;
  double kl_mean = 0;
  double kl_p99 = 0;
  double top1 = 1;
  double ttft_ms = 0;
  double decode_tps = 0;
  int64_t hit_tokens = 0;  // of a shared prefix: neither computed nor scored
};
// Of the rows that have a measure for every text, in the order of `names`.
std::vector<AblationSummary> SummarizeAblation(const AblationRun& run,
                                               const std::vector<AblationMeasure>& measures,
                                               const std::vector<std::string>& names,
                                               const std::vector<std::string>& texts);

std::string AblationTable(const std::vector<AblationSummary>& rows);
// PPL of raw16 by position, and by how many percent the NLL of the others differs there; at most
// eight columns. Rows of the grid are left out.
std::string PositionTable(const std::vector<AblationMeasure>& measures,
                          const std::vector<AblationSummary>& rows);
// Rows of the grid as series, of which q8 and q4 with their window are points too.
std::vector<QualityPoint> AblationPoints(const std::vector<AblationSummary>& rows,
                                         int64_t window_tokens);

Json AblationJson(const AblationRun& run, const std::vector<AblationMeasure>& measures,
                  const std::vector<AblationSummary>& rows);
// The measures of such a JSON. DATA_LOSS when it is none; FAILED_PRECONDITION when another run
// wrote it.
absl::StatusOr<std::vector<AblationMeasure>> AblationMeasuresOf(const std::string& json,
                                                                const AblationRun& run);

}  // namespace pagoda::cli
