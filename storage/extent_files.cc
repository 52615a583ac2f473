#include "storage/extent_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/ssd_damage.h"

namespace pagoda {
namespace {

constexpr char kSuffix[] = ".extents";
constexpr size_t kPartsMax = 1024;  // IOV_MAX
constexpr int64_t kEmptyFilesKept = 1;

// A list of parts that is consumed from the front, in pieces of at most kPartsMax.
class Vector {
 public:
  template <typename Part>
  explicit Vector(absl::Span<const Part> parts) {
    parts_.reserve(parts.size());
    for (const Part& part : parts) {
      if (part.empty()) continue;
      parts_.push_back({const_cast<std::byte*>(part.data()), part.size()});
      left_bytes_ += static_cast<int64_t>(part.size());
    }
  }
  const iovec* data() const { return parts_.data() + first_; }
  int count() const { return static_cast<int>(std::min(kPartsMax, parts_.size() - first_)); }
  int64_t left_bytes() const { return left_bytes_; }
  void Consume(int64_t bytes) {
    left_bytes_ -= bytes;
    while (bytes > 0) {
      iovec& part = parts_[first_];
      const auto taken = std::min<int64_t>(bytes, static_cast<int64_t>(part.iov_len));
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      bytes -= taken;
      if (part.iov_len == 0) ++first_;
    }
  }

 private:
  std::vector<iovec> parts_;
  size_t first_ = 0;
  int64_t left_bytes_ = 0;
};

// Direct I/O goes on only from an aligned place, so a short count is cut to one.
int64_t Progress(int64_t done, int64_t left_bytes) {
  return done == left_bytes ? done : done / kExtentAlignBytes * kExtentAlignBytes;
}

}  // namespace

absl::Status FromErrno(int64_t negative_errno, absl::string_view doing) {
  const int error = static_cast<int>(-negative_errno);
  const std::string text = absl::StrCat("ssd: ", doing, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(
          absl::StrCat(text, "; free space on that disk or lower ssd.capacity"));
    case EMFILE:
    case ENFILE:
      return absl::UnavailableError(
          absl::StrCat(text, "; raise the limit of open files (ulimit -n, LimitNOFILE)"));
    case EROFS:
      return absl::UnavailableError(absl::StrCat(text, "; remount it writable"));
    default:
      return absl::UnavailableError(text);
  }
}

struct ExtentFiles::File {
  File(FileOps& file_ops, int open_fd, int64_t size) : ops(file_ops), fd(open_fd), bytes(size) {}
  ~File() { ops.Close(fd); }
  FileOps& ops;
  const int fd;
  const int64_t bytes;
};

// ---- Files --------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<ExtentFiles>> ExtentFiles::Open(const Options& options,
                                                               FileOps& ops) {
  PAGODA_CHECK(options.file_bytes > 0 && options.file_bytes % kExtentAlignBytes == 0);
  PAGODA_CHECK(options.file_count_max > 0);
  std::unique_ptr<ExtentFiles> files(new ExtentFiles(options, ops));
  PAGODA_RETURN_IF_ERROR(files->OpenExisting());
  return files;
}

ExtentFiles::~ExtentFiles() = default;

std::string ExtentFiles::PathOf(uint32_t file) const {
  return absl::StrFormat("%s/%06d%s", options_.folder, file, kSuffix);
}

absl::Status ExtentFiles::OpenExisting() {
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  std::filesystem::directory_iterator entries(options_.folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrFormat("ssd: cannot use folder %s: %s", options_.folder, error.message()));
  }
  for (const auto& entry : entries) {
    uint32_t number = 0;
    if (entry.path().extension() != kSuffix ||
        !absl::SimpleAtoi(entry.path().stem().string(), &number) || number == 0) {
      continue;  // not ours
    }
    PAGODA_RETURN_IF_ERROR(OpenOne(number));
  }
  return absl::OkStatus();
}

absl::Status ExtentFiles::OpenOne(uint32_t number) {
  const std::string path = PathOf(number);
  const int fd = ops_.Open(path, O_RDWR | (options_.direct_io ? O_DIRECT : 0));
  if (fd < 0) return FromErrno(fd, absl::StrCat("open ", path));
  const int64_t size = ops_.Size(fd);
  auto file = std::make_shared<const File>(ops_, fd, size / kExtentAlignBytes * kExtentAlignBytes);
  if (size < 0) return FromErrno(size, absl::StrCat("size of ", path));
  if (file->bytes == 0) {  // its pages, if it had any, are found missing
    ops_.Unlink(path);
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mutex_);
  next_number_ = std::max(next_number_, number + 1);
  space_.AddFile(number, file->bytes);
  files_.emplace(number, std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<ExtentFiles::FilePtr> ExtentFiles::Create(uint32_t number) {
  const std::string path = PathOf(number);
  const int fd = ops_.Open(path, O_RDWR | O_CREAT | O_TRUNC | (options_.direct_io ? O_DIRECT : 0));
  if (fd < 0) return FromErrno(fd, absl::StrCat("create ", path));
  auto file = std::make_shared<const File>(ops_, fd, options_.file_bytes);
  int result = ops_.Allocate(fd, options_.file_bytes);
  if (result == -EOPNOTSUPP) result = ops_.Truncate(fd, options_.file_bytes);
  absl::Status status =
      result == 0
          ? absl::OkStatus()
          : FromErrno(result, absl::StrFormat("reserve %d bytes in %s", options_.file_bytes, path));
  if (status.ok()) status = SyncFolder();
  if (!status.ok()) {
    ops_.Unlink(path);
    return status;
  }
  return file;
}

absl::Status ExtentFiles::SyncFolder() {
  const int fd = ops_.Open(options_.folder, O_RDONLY | O_DIRECTORY);
  if (fd < 0) return FromErrno(fd, absl::StrCat("open ", options_.folder));
  const int result = ops_.SyncData(fd);
  ops_.Close(fd);
  if (result == 0) return absl::OkStatus();
  return FromErrno(result, absl::StrCat("sync ", options_.folder));
}

ExtentFiles::FilePtr ExtentFiles::FileOf(uint32_t number) const {
  absl::MutexLock lock(&mutex_);
  const auto it = files_.find(number);
  PAGODA_CHECK(it != files_.end());
  return it->second;
}

void ExtentFiles::Retire(uint32_t file) {
  absl::MutexLock lock(&mutex_);
  if (!space_.has_file(file) || retired_[file]) return;
  retired_[file] = true;
  space_.RetireFile(file);
}

bool ExtentFiles::IsRetired(uint32_t file) const {
  absl::MutexLock lock(&mutex_);
  return retired_.contains(file);
}

void ExtentFiles::RemoveEmptyFiles() {
  std::map<uint32_t, FilePtr> removed;
  {
    absl::MutexLock lock(&mutex_);
    const std::vector<uint32_t> empty = space_.EmptyFiles();
    int64_t kept_count = 0;
    // The lowest number stays: it is filled first.
    for (auto it = empty.rbegin(); it != empty.rend(); ++it) {
      if (!retired_.contains(*it) && kept_count++ < kEmptyFilesKept) continue;
      space_.RemoveFile(*it);
      retired_.erase(*it);
      removed.insert(files_.extract(*it));
    }
  }
  for (const auto& [number, file] : removed) {
    const int result = ops_.Unlink(PathOf(number));
    if (result < 0) {
      LogWarning("ssd_file_not_removed",
                 {{"path", PathOf(number)}, {"error", std::strerror(-result)}});
    }
  }
}

bool ExtentFiles::Holds(const Extent& extent) const {
  absl::MutexLock lock(&mutex_);
  return space_.has_file(extent.file) && extent.end() <= space_.file_bytes(extent.file);
}

int64_t ExtentFiles::file_count() const {
  absl::MutexLock lock(&mutex_);
  return space_.file_count();
}

int64_t ExtentFiles::total_bytes() const {
  absl::MutexLock lock(&mutex_);
  return space_.total_bytes();
}

// ---- Space --------------------------------------------------------------------------------------

std::vector<Extent> ExtentFiles::Adopt(std::vector<Extent> used) {
  absl::MutexLock lock(&mutex_);
  return space_.Adopt(std::move(used));
}

absl::StatusOr<Extent> ExtentFiles::Allocate(int64_t bytes) {
  uint32_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto extent = space_.Allocate(bytes)) return *extent;
    if (bytes > options_.file_bytes) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "ssd: page of %d bytes, extent files of %d; raise ssd.capacity or the size of its files",
          bytes, options_.file_bytes));
    }
    // By bytes, because files of earlier runs may have another size.
    const int64_t grown_bytes = space_.total_bytes() + (growing_count_ + 1) * options_.file_bytes;
    if (grown_bytes > options_.file_count_max * options_.file_bytes) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "ssd: no free run of %d bytes; %d of %d are used, in %d files, the most there may be",
          bytes, space_.used_bytes(), space_.total_bytes(), space_.file_count()));
    }
    ++growing_count_;
    number = next_number_++;
  }
  absl::StatusOr<FilePtr> file = Create(number);
  absl::MutexLock lock(&mutex_);
  --growing_count_;
  if (!file.ok()) return file.status();
  space_.AddFile(number, (*file)->bytes);
  files_.emplace(number, *std::move(file));
  const auto extent = space_.Allocate(bytes);
  PAGODA_CHECK(extent.has_value());  // a whole empty file has just come in
  return *extent;
}

void ExtentFiles::Free(const Extent& extent) {
  absl::MutexLock lock(&mutex_);
  space_.Free(extent);
}

// ---- Bytes --------------------------------------------------------------------------------------

absl::Status ExtentFiles::Write(const Extent& extent, absl::Span<const ByteSpan> parts) {
  const FilePtr file = FileOf(extent.file);
  Vector left(parts);
  PAGODA_CHECK(left.left_bytes() == extent.bytes);
  while (left.left_bytes() > 0) {
    const int64_t at = extent.end() - left.left_bytes();
    const int64_t done = ops_.WriteV(file->fd, left.data(), left.count(), at);
    if (done == -EINTR) continue;
    const int64_t progress = done < 0 ? 0 : Progress(done, left.left_bytes());
    if (progress == 0) {
      return FromErrno(done < 0 ? done : -EIO,
                       absl::StrFormat("write %d bytes at %d of %s", left.left_bytes(), at,
                                       PathOf(extent.file)));
    }
    left.Consume(progress);
  }
  return absl::OkStatus();
}

absl::Status ExtentFiles::Read(const Extent& extent, int64_t begin,
                               absl::Span<const MutableByteSpan> parts) const {
  const FilePtr file = FileOf(extent.file);
  Vector left(parts);
  const int64_t end = extent.offset + begin + left.left_bytes();
  PAGODA_CHECK(begin >= 0 && end <= extent.end());
  while (left.left_bytes() > 0) {
    const int64_t at = end - left.left_bytes();
    const int64_t done = ops_.ReadV(file->fd, left.data(), left.count(), at);
    if (done == -EINTR) continue;
    const std::string where =
        absl::StrFormat("read %d bytes at %d of %s", left.left_bytes(), at, PathOf(extent.file));
    if (done == -EIO) return SsdDamage(IntegrityKind::kUnreadable, absl::StrCat(where, ": EIO"));
    if (done < 0) return FromErrno(done, where);
    const int64_t progress = Progress(done, left.left_bytes());
    if (progress == 0) {
      return SsdDamage(IntegrityKind::kMissing, absl::StrCat(where, ": the file ends before"));
    }
    left.Consume(progress);
  }
  return absl::OkStatus();
}

absl::Status ExtentFiles::Sync(uint32_t file) {
  const int result = ops_.SyncData(FileOf(file)->fd);
  if (result == 0) return absl::OkStatus();
  return FromErrno(result, absl::StrCat("sync ", PathOf(file)));
}

}  // namespace pagoda
