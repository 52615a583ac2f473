#include "storage/device/flag_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace pagoda {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status SystemError(absl::string_view call) {
  return absl::UnavailableError(absl::StrFormat("flag page: %s: %s", call, std::strerror(errno)));
}

absl::StatusOr<std::byte*> MapPage(int fd) {
  void* data =
      mmap(nullptr, FlagPage::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, /*offset=*/0);
  if (data == MAP_FAILED) return SystemError("mmap");
  return static_cast<std::byte*>(data);
}

}  // namespace

FlagPage::FlagPage(UniqueFd fd, std::byte* data) : fd_(std::move(fd)), data_(data) {}
FlagPage::FlagPage(FlagPage&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)) {}
FlagPage::~FlagPage() {
  if (data_ != nullptr) munmap(data_, kBytes);
}

absl::StatusOr<FlagPage> FlagPage::Create() {
  UniqueFd fd(memfd_create("pagoda-flags", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return SystemError("memfd_create");
  if (ftruncate(fd.get(), kBytes) != 0) return SystemError("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) return SystemError("F_ADD_SEALS");
  const absl::StatusOr<std::byte*> data = MapPage(fd.get());
  if (!data.ok()) return data.status();
  return FlagPage(std::move(fd), *data);
}

absl::StatusOr<FlagPage> FlagPage::Map(UniqueFd fd) {
  struct stat status {};
  // Short or able to shrink, it would end this process at an access.
  if (!fd.valid() || fstat(fd.get(), &status) != 0 || status.st_size != kBytes ||
      (fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        absl::StrFormat("flag page: not a sealed memfd of %d bytes", kBytes));
  }
  const absl::StatusOr<std::byte*> data = MapPage(fd.get());
  if (!data.ok()) return data.status();
  return FlagPage(std::move(fd), *data);
}

}  // namespace pagoda
