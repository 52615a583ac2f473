// What `pagoda eval codecs` found: a line as each text is done, a table of all codecs at the end,
// and the JSON, from which an interrupted run goes on.
//
// Units      NLL change in percent, KL in nats (tables: thousandths), bits per element
// Threads    pure functions
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/json_output.h"
#include "client/cli/text_table.h"
#include "client/worker/paired_quality.h"

namespace pagoda::cli {

// One codec over one text.
struct CodecRow {
  std::string codec;
  double k_bits = 0;
  double v_bits = 0;
  std::string text;
  double nll_delta_pct = 0;
  double nll_delta_se = 0;
  double kl_mean = 0;
  double kl_p99 = 0;
  double top1 = 1;
};
CodecRow MakeCodecRow(std::string codec, double k_bits, double v_bits, std::string text,
                      const QualitySummary& quality);

// What rows must share to stand in one table.
struct CodecRun {
  std::string model;  // identity, hex
  int64_t token_count = 0;
  int64_t window_tokens = 0;
  bool operator==(const CodecRun&) const = default;
};

TextTable CodecLines();
std::vector<std::string> CodecLine(const CodecRow& row);

// One line per codec that has a row for every text, in the order of the rows: means over the texts,
// the worst text, and KL of each text over that of q4_0+H where that was measured.
std::string CodecSummary(const std::vector<CodecRow>& rows, const std::vector<std::string>& texts);

Json CodecJson(const CodecRun& run, const std::vector<CodecRow>& rows);
// The rows of such a JSON. DATA_LOSS when it is none; FAILED_PRECONDITION when another run wrote
// it.
absl::StatusOr<std::vector<CodecRow>> CodecRowsOf(const std::string& json, const CodecRun& run);

}  // namespace pagoda::cli
