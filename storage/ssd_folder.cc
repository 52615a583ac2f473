#include "storage/ssd_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_format.h"

namespace pagoda {

absl::StatusOr<std::string> SetSsdIndexAside(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path kept = fs::path(path) / "damaged";
  std::error_code error;
  fs::remove_all(kept, error);
  if (!error) fs::create_directory(kept, error);
  std::vector<fs::path> files;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (at->is_regular_file(error) && at->path().filename() != "LOCK") files.push_back(at->path());
  }
  for (const fs::path& file : files) {
    if (!error) fs::rename(file, kept / file.filename(), error);
  }
  if (!error) fs::remove_all(fs::path(path) / "extents", error);
  if (error) {
    return absl::UnavailableError(
        absl::StrFormat("ssd: cannot set the damaged index of %s aside: %s; empty the folder", path,
                        error.message()));
  }
  return kept.string();
}

absl::StatusOr<SsdFolder> PrepareSsdFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrFormat("ssd: cannot create folder %s: %s", path, error.message()));
  }
  const std::string probe = path + "/.pagoda-probe";
  const int fd = open(probe.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrFormat("ssd: cannot write to folder %s: %s", path, std::strerror(errno)));
  }
  close(fd);
  const int direct_fd = open(probe.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (direct_fd >= 0) close(direct_fd);
  unlink(probe.c_str());
  return SsdFolder{direct_fd >= 0};
}

}  // namespace pagoda
