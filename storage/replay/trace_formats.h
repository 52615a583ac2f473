// The three trace formats that are read. Each parser takes the whole text and gives the whole
// trace, or refuses it: a trace that is half read would give figures that look right.
//
//   Mooncake   one JSON object per line, in the order of arrival:
//              {"timestamp": ms, "input_length": tokens, "hash_ids": [ids of 512-token blocks]}
//              (Mooncake, FAST 2025; the last id may stand for a partial block)
//   agentic    one JSON object per conversation: {"bs": block tokens, "reqs": [{"t": s, "in":
//   tokens,
//              "h": [[first id, count], ...]}, ...]}; ids are the conversation's own, full blocks
//              only. Conversation i (from 0) starts at i x 120 s; requests are merged by time.
//   CSV        "# block_tokens=64", then "time_s,tokens,ids", then a line per request; ids are
//              numbers below 2^64 with spaces between. Empty lines, and others with a #, are
//              skipped.
//
// Other members of the objects are not looked at. Ids are hashes of the whole prefix in all of
// them.
//
// Threads    pure functions
// Errors     INVALID_ARGUMENT  "NAME, line N: cause; remedy". NOT_FOUND  a trace without requests
// Cost       about 100 MB of text a second
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/replay/trace.h"

namespace pagoda::replay {

struct AgenticOptions {
  double conversation_gap_seconds = 120;  // a choice: the data says nothing of it
  int64_t conversation_max = INT64_MAX;   // only the first ones
};

absl::StatusOr<Trace> ParseMooncakeTrace(absl::string_view text, absl::string_view name);
absl::StatusOr<Trace> ParseAgenticTrace(absl::string_view text, absl::string_view name,
                                        const AgenticOptions& options);
absl::StatusOr<Trace> ParseCsvTrace(absl::string_view text, absl::string_view name);

// By the text's beginning; INVALID_ARGUMENT lists the formats when it is none of them.
absl::StatusOr<Trace> ParseTrace(absl::string_view text, absl::string_view name,
                                 const AgenticOptions& options);

}  // namespace pagoda::replay
