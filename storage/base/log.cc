#include "storage/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

spdlog::logger& Logger() {
  // Never destroyed: threads may log while the process exits.
  static spdlog::logger* logger = [] {
    auto* made =
        new spdlog::logger("pagoda", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

void AppendValue(std::string& line, const std::string& value) {
  const bool plain = !value.empty() && value.find_first_of(" \"\t\n\r=") == std::string::npos;
  if (plain) {
    line += value;
  } else {
    absl::StrAppend(&line, "\"", absl::CEscape(value), "\"");
  }
}

}  // namespace

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

absl::Status SetLogLevelByName(absl::string_view name) {
  if (name == "debug") {
    SetLogLevel(LogLevel::kDebug);
  } else if (name == "info") {
    SetLogLevel(LogLevel::kInfo);
  } else if (name == "warning") {
    SetLogLevel(LogLevel::kWarning);
  } else if (name == "error") {
    SetLogLevel(LogLevel::kError);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("log level '", name, "' is unknown; use debug, info, warning or error"));
  }
  return absl::OkStatus();
}

void Log(LogLevel level, absl::string_view event, LogFields fields) {
  spdlog::logger& logger = Logger();
  if (!logger.should_log(ToSpdlog(level))) return;
  std::string line(event);
  for (const auto& [key, value] : fields) {
    absl::StrAppend(&line, " ", key, "=");
    AppendValue(line, value);
  }
  logger.log(ToSpdlog(level), "{}", line);
}

}  // namespace pagoda
