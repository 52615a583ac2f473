// The --json FILE of every command: the result as one JSON object with stable keys, beside the text
// for people. "-" is stdout; the text then goes to stderr, so that a pipe gets JSON alone.
//
// Threads    one at a time
// Errors     NOT_FOUND, PERMISSION_DENIED, INTERNAL: the path and the system's reason. A file is
//            replaced as a whole or not at all.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pagoda::cli {

// Members keep the order in which they were written.
using Json = nlohmann::ordered_json;

struct JsonOptions {
  std::string path;  // empty: no JSON
};

// Where the text for people goes.
FILE* TextStream(const JsonOptions& options);
void PrintText(const JsonOptions& options, absl::string_view text);

// Fails early when the path cannot be written, before minutes of work are lost.
absl::Status CheckJsonPath(const JsonOptions& options);

// Any text into a file, replaced as a whole; "-" is stdout.
absl::Status WriteOutput(const std::string& path, const std::string& text);

// Does nothing without a path.
absl::Status WriteJson(const JsonOptions& options, const Json& value);

}  // namespace pagoda::cli
