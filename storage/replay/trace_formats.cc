#include "storage/replay/trace_formats.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pagoda::replay {

absl::StatusOr<Trace> ParseTrace(absl::string_view text, absl::string_view name,
                                 const AgenticOptions& options) {
  const absl::string_view first_line = text.substr(0, text.find('\n'));
  if (absl::StartsWith(first_line, "#")) return ParseCsvTrace(text, name);
  if (absl::StartsWith(first_line, "{")) {
    if (absl::StrContains(first_line, "\"reqs\"")) return ParseAgenticTrace(text, name, options);
    if (absl::StrContains(first_line, "\"hash_ids\"")) return ParseMooncakeTrace(text, name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name,
      ", line 1: no known trace format; known are Mooncake JSONL (objects with \"hash_ids\"), "
      "conversations (objects with \"reqs\"), and CSV (\"# block_tokens=64\" first)"));
}

}  // namespace pagoda::replay
