// Conversations of agents, one JSON object each: see trace_formats.h.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/replay/json_member.h"
#include "storage/replay/line_reader.h"
#include "storage/replay/trace_formats.h"

namespace pagoda::replay {
namespace {

constexpr int64_t kBlockTokensMax = 1 << 16;

// Ids of the file: numbers of a conversation.
struct LocalRun {
  int64_t first = 0;
  int64_t count = 0;
};

struct Turn {
  double seconds = 0;
  int64_t tokens = 0;
  int64_t line = 0;
  std::vector<LocalRun> runs;
};

absl::StatusOr<LocalRun> ParseRun(const Json& range) {
  const bool pair = range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
                    range[1].is_number_unsigned();
  // Bounded so that sums of them stay in range.
  constexpr uint64_t kMax = uint64_t{1} << 40;
  if (!pair || range[0].get<uint64_t>() > kMax || range[1].get<uint64_t>() > kMax) {
    return absl::InvalidArgumentError(
        "\"h\" holds what is no [first id, count] below 2^40; mend or delete the line");
  }
  return LocalRun{range[0].get<int64_t>(), range[1].get<int64_t>()};
}

absl::StatusOr<Turn> ParseTurn(const Json& object, int64_t block_tokens) {
  Turn turn;
  if (!object.is_object()) return WrongMember("reqs", "an array of objects");
  PAGODA_ASSIGN_OR_RETURN(turn.seconds, NumberMember(object, "t"));
  PAGODA_ASSIGN_OR_RETURN(turn.tokens, CountMember(object, "in"));
  PAGODA_ASSIGN_OR_RETURN(const Json* const ranges, ArrayMember(object, "h"));
  int64_t block_count = 0;
  for (const Json& range : *ranges) {
    PAGODA_ASSIGN_OR_RETURN(const LocalRun run, ParseRun(range));
    if (run.count > 0) turn.runs.push_back(run);
    block_count += run.count;
    if (block_count > TraceBuilder::kRequestBlocksMax) break;
  }
  if (block_count != turn.tokens / block_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ranges of %d blocks for %d tokens; full blocks of %d tokens make %d",
                        block_count, turn.tokens, block_tokens, turn.tokens / block_tokens));
  }
  return turn;
}

// Gives the ids of one conversation numbers from `next` on: the ids that are used, in their order,
// so that runs stay runs.
class Renumbering {
 public:
  Renumbering(const std::vector<Turn>& turns, int64_t next) : next_(next) {
    std::vector<LocalRun> used;
    for (const Turn& turn : turns) used.insert(used.end(), turn.runs.begin(), turn.runs.end());
    std::sort(used.begin(), used.end(),
              [](const LocalRun& a, const LocalRun& b) { return a.first < b.first; });
    for (const LocalRun& run : used) {
      const int64_t end = run.first + run.count;
      if (spans_.empty() || spans_.back().end < run.first) {
        spans_.push_back({run.first, end, next_});
        next_ += run.count;
      } else if (spans_.back().end < end) {
        next_ += end - spans_.back().end;
        spans_.back().end = end;
      }
    }
  }

  int64_t next() const { return next_; }
  BlockRun NumbersOf(const LocalRun& run) const {
    const auto after =
        std::upper_bound(spans_.begin(), spans_.end(), run.first,
                         [](int64_t first, const UsedSpan& span) { return first < span.begin; });
    const UsedSpan& span = *std::prev(after);
    return {static_cast<uint32_t>(span.number + (run.first - span.begin)),
            static_cast<uint32_t>(run.count)};
  }

 private:
  struct UsedSpan {
    int64_t begin;
    int64_t end;
    int64_t number;  // of `begin`
  };
  std::vector<UsedSpan> spans_;  // sorted, with gaps between them
  int64_t next_;
};

struct Arrival {
  double seconds;
  int64_t tokens;
  int64_t line;
  std::vector<BlockRun> runs;
};

// Appends the conversation's requests; `next_number` is the first number that is free.
absl::Status AddConversation(absl::string_view text, int64_t line, double start_seconds,
                             std::optional<int64_t>& block_tokens, int64_t& next_number,
                             std::vector<Arrival>& arrivals) {
  PAGODA_ASSIGN_OR_RETURN(const Json object, ParseJsonObject(text));
  PAGODA_ASSIGN_OR_RETURN(const int64_t tokens, CountMember(object, "bs"));
  if (tokens < 1 || tokens > kBlockTokensMax || tokens != block_tokens.value_or(tokens)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"bs\" is %d; it is from 1 to %d, and the same in all lines", tokens, kBlockTokensMax));
  }
  block_tokens = tokens;
  PAGODA_ASSIGN_OR_RETURN(const Json* const requests, ArrayMember(object, "reqs"));
  std::vector<Turn> turns;
  for (const Json& request : *requests) {
    PAGODA_ASSIGN_OR_RETURN(Turn turn, ParseTurn(request, tokens));
    turns.push_back(std::move(turn));
  }
  const Renumbering numbers(turns, next_number);
  if (numbers.next() > TraceBuilder::kIdsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("more than %d different blocks up to here; replay a part of the trace",
                        TraceBuilder::kIdsMax));
  }
  for (const Turn& turn : turns) {
    Arrival arrival{start_seconds + turn.seconds, turn.tokens, line, {}};
    for (const LocalRun& run : turn.runs) arrival.runs.push_back(numbers.NumbersOf(run));
    arrivals.push_back(std::move(arrival));
  }
  next_number = numbers.next();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Trace> ParseAgenticTrace(absl::string_view text, absl::string_view name,
                                        const AgenticOptions& options) {
  LineReader reader(text, name);
  std::optional<int64_t> block_tokens;
  std::vector<Arrival> arrivals;
  int64_t next_number = 1;
  int64_t conversation = 0;
  for (absl::string_view line; conversation < options.conversation_max && reader.Next(line);) {
    if (line.empty()) continue;
    const double start = static_cast<double>(conversation++) * options.conversation_gap_seconds;
    const absl::Status added =
        AddConversation(line, reader.number(), start, block_tokens, next_number, arrivals);
    if (!added.ok()) return reader.Error(added.message());
  }
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.seconds < b.seconds; });
  TraceBuilder builder(block_tokens.value_or(1));
  for (const Arrival& arrival : arrivals) {
    const absl::Status added = builder.Add(arrival.seconds, arrival.tokens, arrival.runs);
    if (!added.ok()) return reader.ErrorAt(arrival.line, added.message());
  }
  return std::move(builder).Finish(name);
}

}  // namespace pagoda::replay
