#include "client/worker/model_path.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

// Empty when the variable is unset or empty: an empty path would mean the root folder.
std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::StatusOr<std::string> CacheFolder() {
  if (std::string folder = Environment("PAGODA_CACHE_DIR"); !folder.empty()) return folder;
  if (std::string folder = Environment("XDG_CACHE_HOME"); !folder.empty()) {
    return absl::StrCat(folder, "/pagoda");
  }
  if (std::string folder = Environment("HOME"); !folder.empty()) {
    return absl::StrCat(folder, "/.cache/pagoda");
  }
  return absl::FailedPreconditionError(
      "no cache folder: set PAGODA_CACHE_DIR, or name a model with --model FILE");
}

absl::StatusOr<std::string> ResolveModelPath(absl::string_view flag) {
  std::string path(flag);
  if (path.empty()) {
    PAGODA_ASSIGN_OR_RETURN(const std::string folder, CacheFolder());
    path = absl::StrCat(folder, "/models/", kDefaultModelFile);
  }
  if (access(path.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrFormat(
        "no model file at %s: run deploy/quickstart.sh, or name another with --model FILE", path));
  }
  return path;
}

}  // namespace pagoda
