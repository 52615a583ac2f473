#include "cache-server/master_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/digest.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

absl::Status WriteAll(int file, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(file, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return absl::UnavailableError(std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return ::fsync(file) == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(errno));
}

absl::Status Make(const std::string& path) {
  const absl::StatusOr<Sha256Digest> random = RandomBytes32();
  if (!random.ok()) return random.status();
  // Written aside, then linked: link() refuses to replace, so that the first of two daemons wins
  // and nobody ever reads half a secret.
  const std::string aside = absl::StrCat(path, ".", ::getpid());
  const int file = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) {
    return absl::UnavailableError(absl::StrCat("cannot make ", path, ": ", std::strerror(errno),
                                               "; make the folder writable for this user"));
  }
  const auto remove_aside = absl::MakeCleanup([&] { ::unlink(aside.c_str()); });
  const absl::Status written =
      WriteAll(file, absl::string_view(reinterpret_cast<const char*>(random->data()), 32));
  ::close(file);
  if (!written.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", written.message()));
  }
  if (::link(aside.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat("cannot make ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadMasterSecret(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    const std::string cause = absl::StrCat("master secret ", path, ": ", std::strerror(errno));
    if (errno == ENOENT) {
      return absl::NotFoundError(
          absl::StrCat(cause, "; make it: head -c 32 /dev/urandom > FILE && chmod 600 FILE"));
    }
    return absl::UnavailableError(cause);
  }
  const auto close_file = absl::MakeCleanup([&] { ::close(file); });
  struct stat info {};
  if (::fstat(file, &info) != 0) return absl::UnavailableError(std::strerror(errno));
  if ((info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("master secret %s has mode %04o, others may read it; run: chmod 600 %s",
                        path, info.st_mode & 07777, path));
  }
  std::array<char, kMasterSecretBytes + 1> bytes;  // One more, to see that it is too long.
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = ::read(file, bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::UnavailableError(
          absl::StrCat("master secret ", path, ": ", std::strerror(errno)));
    }
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size != kMasterSecretBytes) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "master secret %s is not exactly 32 bytes; restore it, or remove it to start with an empty "
        "cache",
        path));
  }
  return std::string(bytes.data(), kMasterSecretBytes);
}

absl::StatusOr<std::string> ReadOrMakeMasterSecret(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) PAGODA_RETURN_IF_ERROR(Make(path));
  return ReadMasterSecret(path);
}

}  // namespace pagoda
