// Mooncake JSONL: see trace_formats.h.
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"
#include "storage/replay/block_numbers.h"
#include "storage/replay/json_member.h"
#include "storage/replay/line_reader.h"
#include "storage/replay/trace_formats.h"

namespace pagoda::replay {
namespace {

constexpr int64_t kBlockTokens = 512;
constexpr double kSecondsPerMillisecond = 1e-3;

absl::Status AddLine(absl::string_view line, BlockNumbers& numbers, TraceBuilder& builder) {
  PAGODA_ASSIGN_OR_RETURN(const Json object, ParseJsonObject(line));
  PAGODA_ASSIGN_OR_RETURN(const double timestamp, NumberMember(object, "timestamp"));
  PAGODA_ASSIGN_OR_RETURN(const int64_t tokens, CountMember(object, "input_length"));
  PAGODA_ASSIGN_OR_RETURN(const Json* const ids, ArrayMember(object, "hash_ids"));
  std::vector<BlockRun> runs;
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned()) {
      return absl::InvalidArgumentError("hash_ids holds what is no number from 0 to 2^64 - 1");
    }
    numbers.Append(id.get<uint64_t>(), runs);
  }
  return builder.Add(timestamp * kSecondsPerMillisecond, tokens, runs);
}

}  // namespace

absl::StatusOr<Trace> ParseMooncakeTrace(absl::string_view text, absl::string_view name) {
  LineReader reader(text, name);
  BlockNumbers numbers;
  TraceBuilder builder(kBlockTokens);
  for (absl::string_view line; reader.Next(line);) {
    if (line.empty()) continue;
    const absl::Status added = AddLine(line, numbers, builder);
    if (!added.ok()) return reader.Error(added.message());
  }
  return std::move(builder).Finish(name);
}

}  // namespace pagoda::replay
