// --resume of commands that measure for minutes: they go on with what the file of --json has.
//
// Threads    pure functions, but for the file
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/cli/json_output.h"

namespace pagoda::cli {

void AddResumeFlag(CLI::App& app, bool& resume);
// Empty: fine.
std::string CheckResume(bool resume, const JsonOptions& json);
// The file's text; nothing without the flag, and before anything was measured.
std::optional<std::string> EarlierJson(bool resume, const JsonOptions& json);
// What is wrong with that text, with the flag and the file in front.
absl::Status ExplainResume(const absl::Status& status, const JsonOptions& json);

}  // namespace pagoda::cli
