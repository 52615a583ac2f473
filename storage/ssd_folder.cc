#include "storage/ssd_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"

namespace pagoda {

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
