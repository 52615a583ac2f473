#include "cache-server/data_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace pagoda {

absl::StatusOr<std::unique_ptr<DataFolder>> DataFolder::Take(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("data_dir: cannot make ", path, ": ",
                                               error.message(), "; choose another --data-dir"));
  }
  const std::string lock_path = path + "/lock";
  const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) {
    return absl::UnavailableError(absl::StrCat("data_dir: cannot write in ", path, ": ",
                                               std::strerror(errno),
                                               "; make it writable for this user, or choose "
                                               "another --data-dir"));
  }
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock);
    return absl::FailedPreconditionError(
        absl::StrCat("data_dir: ", path,
                     " is in use by another pagodad; stop it, or choose another --data-dir"));
  }
  return std::unique_ptr<DataFolder>(new DataFolder(lock));
}

DataFolder::~DataFolder() { ::close(lock_); }

}  // namespace pagoda
