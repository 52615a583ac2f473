// One line per state change: "event key=value ...". Never per page, never a secret or a token.
//
//   LogInfo("ssd_opened", {{"path", path}, {"pages", absl::StrCat(count)}});
//
// Threads  any.   Written to stderr by spdlog; values with spaces or quotes are quoted.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pagoda {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
using LogFields = std::initializer_list<std::pair<absl::string_view, std::string>>;

// The lowest level that is written; kInfo at the start.
void SetLogLevel(LogLevel level);
absl::Status SetLogLevelByName(absl::string_view name);  // debug, info, warning, error

void Log(LogLevel level, absl::string_view event, LogFields fields = {});
inline void LogDebug(absl::string_view event, LogFields fields = {}) {
  Log(LogLevel::kDebug, event, fields);
}
inline void LogInfo(absl::string_view event, LogFields fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(absl::string_view event, LogFields fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(absl::string_view event, LogFields fields = {}) {
  Log(LogLevel::kError, event, fields);
}

}  // namespace pagoda
