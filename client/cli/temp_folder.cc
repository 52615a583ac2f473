#include "client/cli/temp_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::cli {

absl::StatusOr<TempFolder> TempFolder::Make(absl::string_view prefix) {
  std::error_code error;
  const std::filesystem::path root = std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::InternalError(absl::StrFormat(
        "no temporary folder (%s); set TMPDIR to one that exists", error.message()));
  }
  std::string path = absl::StrCat(root.string(), "/", prefix, "XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::InternalError(
        absl::StrFormat("cannot make a folder in %s: %s; set TMPDIR to one "
                        "that may be written",
                        root.string(), std::strerror(errno)));
  }
  return TempFolder(std::move(path));
}

TempFolder::~TempFolder() {
  if (path_.empty()) return;
  std::error_code ignored;  // Nothing can be done about what stays.
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::File(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

absl::Status TempFolder::WriteFile(absl::string_view name, absl::string_view text) const {
  const std::string path = File(name);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (file >= 0) close(file);
  if (written) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("cannot write %s: %s", path, std::strerror(error)));
}

}  // namespace pagoda::cli
