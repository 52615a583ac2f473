#include "cache-server/ladder.h"

#include "absl/strings/str_cat.h"

namespace pagoda {

std::string LadderText(const Ladder& ladder) {
  std::string text(PrecisionName(ladder.fresh));
  if (ladder.idle.has_value()) {
    absl::StrAppend(&text, ", idle ", absl::FormatDuration(ladder.idle_after), " ",
                    PrecisionName(*ladder.idle));
  }
  if (ladder.pressure.has_value()) {
    absl::StrAppend(&text, ", pressure ", PrecisionName(*ladder.pressure));
  }
  if (ladder.ssd.has_value()) absl::StrAppend(&text, ", ssd ", PrecisionName(*ladder.ssd));
  return text;
}

}  // namespace pagoda
