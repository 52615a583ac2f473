#include "storage/device/pretouch.h"

#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"

namespace pagoda {
namespace {

constexpr int kThreadsMax = 16;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kHugeBytes = int64_t{2} << 20;
constexpr int kMadvPopulateWrite = 23;  // MADV_POPULATE_WRITE, of Linux 5.14; older headers lack it

absl::Status SystemError(const char* call, int64_t bytes) {
  return absl::UnavailableError(
      absl::StrFormat("memory: %s of %d bytes: %s", call, bytes, std::strerror(errno)));
}

absl::Status TouchSlice(MutableByteSpan slice) {
  if (madvise(slice.data(), slice.size(), kMadvPopulateWrite) == 0) return absl::OkStatus();
  // Of other errors a touch would be a signal: no memory, a limit, a bad page.
  if (errno != EINVAL) {
    return SystemError("MADV_POPULATE_WRITE", static_cast<int64_t>(slice.size()));
  }
  for (size_t at = 0; at < slice.size(); at += kPageBytes) {
    volatile std::byte* byte = &slice[at];
    *byte = *byte;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Pretouch(absl::Span<const MutableByteSpan> ranges, const PretouchOptions& options) {
  std::vector<MutableByteSpan> slices;
  const auto slice_bytes =
      static_cast<size_t>(std::max(AlignUp(options.slice_bytes, kPageBytes), kPageBytes));
  for (const MutableByteSpan& range : ranges) {
    for (size_t at = 0; at < range.size(); at += slice_bytes) {
      slices.push_back(range.subspan(at, slice_bytes));
    }
  }
  const int wanted =
      options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  const auto count = std::min<size_t>(slices.size(), std::clamp(wanted, 1, kThreadsMax));

  std::atomic<size_t> next{0};  // relaxed: it only shares out, the joins order the rest
  absl::Mutex mutex;
  absl::Status status;  // guarded by mutex: the first error
  const auto work = [&] {
    while (true) {
      const size_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= slices.size()) return;
      const absl::Status touched = TouchSlice(slices[index]);
      if (touched.ok()) continue;
      next.store(slices.size(), std::memory_order_relaxed);
      absl::MutexLock lock(&mutex);
      status.Update(touched);
      return;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < count; ++i) threads.emplace_back(work);
  if (count > 0) work();
  for (std::thread& thread : threads) thread.join();
  return status;
}

absl::Status AdviseHugePages(MutableByteSpan range) {
  if (madvise(range.data(), range.size(), MADV_HUGEPAGE) == 0) return absl::OkStatus();
  return SystemError("MADV_HUGEPAGE", static_cast<int64_t>(range.size()));
}

absl::StatusOr<UniqueFd> HugeMemfd(const char* name, int64_t bytes) {
  if (bytes <= 0 || bytes % kHugeBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("memory: huge pages for %d bytes, a multiple of 2 MiB is needed", bytes));
  }
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!fd.valid()) return SystemError("memfd_create with MFD_HUGETLB", bytes);
  if (ftruncate(fd.get(), bytes) != 0) return SystemError("ftruncate", bytes);
  // A map reserves its pages, or a touch would be a signal. The file keeps them when it goes.
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                    fd.get(), /*offset=*/0);
  if (data == MAP_FAILED) return SystemError("mmap of huge pages (see vm.nr_hugepages)", bytes);
  munmap(data, static_cast<size_t>(bytes));
  return fd;
}

}  // namespace pagoda
