#include "client/cli/resume.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace pagoda::cli {

void AddResumeFlag(CLI::App& app, bool& resume) {
  app.add_flag("--resume", resume,
               "keep what the file of --json already has, measure what is missing");
}

std::string CheckResume(bool resume, const JsonOptions& json) {
  if (!resume || (!json.path.empty() && json.path != "-")) return "";
  return "--resume goes on with the rows of a file; name it with --json FILE";
}

std::optional<std::string> EarlierJson(bool resume, const JsonOptions& json) {
  if (!resume) return std::nullopt;
  std::ifstream file(json.path);
  if (!file) return std::nullopt;
  std::stringstream whole;
  whole << file.rdbuf();
  return whole.str();
}

absl::Status ExplainResume(const absl::Status& status, const JsonOptions& json) {
  return absl::Status(status.code(), absl::StrCat("--resume: ", json.path, ": ", status.message()));
}

}  // namespace pagoda::cli
