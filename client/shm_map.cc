#include "client/shm_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"

namespace pagoda::client {
namespace {

constexpr uint64_t kMemfdBytesMax = uint64_t{4} << 30;  // of a sane daemon

}  // namespace

absl::StatusOr<ShmMapPtr> ShmMap::Make(const UniqueFd& fd, const shm::Memory& memory) {
  const bool sane = memory.memfd_bytes <= kMemfdBytesMax && memory.chunk_bytes % 4096 == 0 &&
                    memory.chunk_bytes > 0 &&
                    memory.memfd_bytes >= static_cast<uint64_t>(GenerationOffset(
                                              static_cast<int64_t>(memory.chunk_bytes),
                                              static_cast<int64_t>(memory.chunk_bytes)));
  // A file that is shorter, or may become so, would end this process when it is read.
  struct stat info {};
  const bool whole = fd.valid() && ::fstat(fd.get(), &info) == 0 &&
                     static_cast<uint64_t>(info.st_size) >= memory.memfd_bytes &&
                     (::fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK) != 0;
  if (!whole || !sane) {
    return absl::DataLossError(absl::StrFormat("shm: memory of %d bytes, %d of them pages",
                                               memory.memfd_bytes, memory.chunk_bytes));
  }
  void* data = ::mmap(nullptr, memory.memfd_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return absl::UnavailableError(
        absl::StrFormat("shm: mmap of %d bytes: %s", memory.memfd_bytes, std::strerror(errno)));
  }
  return std::shared_ptr<const ShmMap>(new ShmMap(static_cast<const std::byte*>(data), memory));
}

ShmMap::~ShmMap() { ::munmap(const_cast<std::byte*>(data_), memory_.memfd_bytes); }

}  // namespace pagoda::client
