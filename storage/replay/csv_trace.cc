// Our own CSV: see trace_formats.h.
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "storage/base/status_macros.h"
#include "storage/replay/block_numbers.h"
#include "storage/replay/line_reader.h"
#include "storage/replay/trace_formats.h"

namespace pagoda::replay {
namespace {

constexpr absl::string_view kBlockTokens = "# block_tokens=";
constexpr absl::string_view kTitles = "time_s,tokens,ids";
constexpr int64_t kBlockTokensMax = 1 << 16;

absl::Status WrongField(absl::string_view what, absl::string_view field, absl::string_view kind) {
  return absl::InvalidArgumentError(absl::StrFormat("%s \"%s\" is not %s; mend or delete the line",
                                                    what, field.substr(0, 40), kind));
}

absl::StatusOr<int64_t> ParseBlockTokens(absl::string_view line) {
  int64_t tokens = 0;
  const bool found = absl::ConsumePrefix(&line, kBlockTokens);
  if (found && absl::SimpleAtoi(line, &tokens) && tokens >= 1 && tokens <= kBlockTokensMax) {
    return tokens;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("the first line of a CSV trace is \"%s64\", with the tokens of a block (1 to "
                      "%d)",
                      kBlockTokens, kBlockTokensMax));
}

absl::Status AddLine(absl::string_view line, BlockNumbers& numbers, TraceBuilder& builder) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  if (fields.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d fields; a line is %s: mend or delete it", fields.size(), kTitles));
  }
  double seconds = 0;
  if (!absl::SimpleAtod(fields[0], &seconds)) {
    return WrongField("time_s", fields[0], "a number of seconds");
  }
  int64_t tokens = 0;
  if (!absl::SimpleAtoi(fields[1], &tokens)) {
    return WrongField("tokens", fields[1], "a whole number");
  }
  std::vector<BlockRun> runs;
  for (const absl::string_view word : absl::StrSplit(fields[2], ' ', absl::SkipEmpty())) {
    uint64_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return WrongField("id", word, "a whole number from 0 to 2^64 - 1");
    }
    numbers.Append(id, runs);
  }
  return builder.Add(seconds, tokens, runs);
}

}  // namespace

absl::StatusOr<Trace> ParseCsvTrace(absl::string_view text, absl::string_view name) {
  LineReader reader(text, name);
  absl::string_view line;
  reader.Next(line);
  const absl::StatusOr<int64_t> block_tokens = ParseBlockTokens(line);
  if (!block_tokens.ok()) return reader.Error(block_tokens.status().message());
  TraceBuilder builder(*block_tokens);
  BlockNumbers numbers;
  bool titles_seen = false;
  while (reader.Next(line)) {
    if (line.empty() || line.front() == '#') continue;
    if (!titles_seen) {
      if (line != kTitles) {
        return reader.Error(absl::StrCat("the titles \"", kTitles, "\" come before the requests"));
      }
      titles_seen = true;
      continue;
    }
    const absl::Status added = AddLine(line, numbers, builder);
    if (!added.ok()) return reader.Error(added.message());
  }
  return std::move(builder).Finish(name);
}

}  // namespace pagoda::replay
